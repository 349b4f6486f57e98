"""Choosing the variant of every group of a stage: all choices that are not worse than another one in every respect.

A choice costs extra time, bytes that stay, bytes a micro-batch in flight, and a peak. Groups that are alike, like the
equal layers of a transformer, are counted rather than told apart, and stages of the same make-up share one front.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

from pipeplan_formulations.clock import Clock
from pipeplan_formulations.graph.mode import Array, Mode


class Front(NamedTuple):
    """Choices that none other beats: ``points[p]`` = (extra time on each line …, fixed, held, peak)."""

    points: Array
    choices: tuple[tuple[tuple[int, int], ...], ...]
    """For each point, the (kind, variant) of its groups, in the order in which they were added."""


class Fronts:
    """The fronts of one mode. ``least[l, g]`` is what group g takes on line l at least; what is beyond it is extra."""

    def __init__(self, mode: Mode) -> None:
        times = np.array([line.time for line in mode.lines])
        shortest = np.where(mode.possible, times, 2**62).min(axis=1)
        self.least: Array = np.where(mode.possible.any(axis=0), shortest, 0)
        kinds: dict[tuple[int, ...], int] = {}
        self._kind: list[int] = []
        self._items: list[list[tuple[int, Array]]] = []
        tables = (mode.fixed, mode.held, mode.peak)
        for g in range(mode.possible.shape[1]):
            rows = [
                (int(v), np.array([*(times[:, v, g] - self.least[:, g]), *(t[v, g] for t in tables)], np.int64))
                for v in np.flatnonzero(mode.possible[:, g])
            ]
            key = tuple(int(x) for v, row in rows for x in (v, *row))
            if key not in kinds:
                kinds[key] = len(self._items)
                self._items.append(rows)
            self._kind.append(kinds[key])
        self.key = len(mode.lines), tuple(self._kind), tuple(kinds)
        self._cache: dict[tuple[tuple[int, int], ...], Front] = {
            (): Front(np.zeros((1, len(times) + 3), np.int64), ((),))
        }

    def front(self, groups: list[int], clock: Clock) -> Front:
        """The front of a stage that holds these groups."""
        return self._of(tuple(sorted(Counter(self._kind[g] for g in groups).items())), clock)

    def variants(self, groups: list[int], choice: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
        """The variant of each of ``groups`` in a choice; of like groups, the first take the first variants."""
        waiting: dict[int, list[int]] = {}
        for kind, variant in choice:
            waiting.setdefault(kind, []).append(variant)
        queues = {kind: sorted(variants, reverse=True) for kind, variants in waiting.items()}
        return tuple(queues[self._kind[g]].pop() for g in groups)

    def _of(self, counts: tuple[tuple[int, int], ...], clock: Clock) -> Front:
        """Built group by group, so that the front of one group fewer is there for others."""
        path = []
        while counts not in self._cache:
            path.append(counts)
            kind, count = counts[-1]
            counts = (*counts[:-1], (kind, count - 1)) if count > 1 else counts[:-1]
        front = self._cache[counts]
        for counts in reversed(path):
            clock.check()
            kind = counts[-1][0]
            items = self._items[kind]
            points = np.concatenate([_joined(front.points, row) for _, row in items])
            kept = _undominated(points)
            size = len(front.points)
            choices = tuple((*front.choices[k % size], (kind, items[k // size][0])) for k in kept)
            front = Front(points[kept], choices)
            self._cache[counts] = front
        return front


def _joined(points: Array, row: Array) -> Array:
    """Every point with one group more: sums, but of the peaks the larger."""
    joined = points + row
    joined[:, -1] = np.maximum(points[:, -1], row[-1])
    return joined


def _undominated(points: Array) -> Array:
    """Indices of the points that no other is at most as large as in every column; of equal points one."""
    order = np.lexsort(points.T[::-1])
    kept: list[int] = []
    for k in order:
        if not kept or not (points[kept] <= points[k]).all(axis=1).any():
            kept.append(int(k))
    return np.array(kept)
