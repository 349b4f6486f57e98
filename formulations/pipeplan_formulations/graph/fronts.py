"""Pareto fronts over the variants of a stage's groups.

A choice of variants costs extra time, static bytes, bytes per micro-batch in flight, and a peak. Identical groups, like
the equal layers of a transformer, are counted rather than distinguished. Stages with the same counts share one front.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.pareto import minimal
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.common.span_options import OptionPoints
from pipeplan_formulations.graph.mode import Array, GraphMode

Counts = tuple[tuple[int, int], ...]
"""Pairs (kind of group, number of such groups), by ascending kind."""


MOST_COMPARED = 3 * 10**7
"""Largest number of pairs of points that are compared for the fronts of one mode."""


class TooLargeError(Exception):
    """There are more stages, or more choices of their variants, than a dynamic programme can list."""


class Front(NamedTuple):
    """Non-dominated choices: ``points[p]`` = (extra time on each line …, fixed, held, peak).

    Point p extends point ``before[p]`` of the front with one group fewer by a group of kind ``kind`` in variant
    ``variant[p]``.
    """

    points: Array
    kind: int = -1
    before: Array = np.zeros(0, np.int64)
    variant: Array = np.zeros(0, np.int64)


class Quick(NamedTuple):
    """Least time of each group on each line, ``least[l, g]``, and the variant of fewest bytes among the fastest ones.

    ``known[g]`` is False if no variant is the fastest on every line.
    """

    least: Array
    variant: Array
    known: NDArray[np.bool_]


def quick(mode: GraphMode) -> Quick:
    """Fastest variant of each group in a mode."""
    times = np.array([line.time for line in mode.lines])
    least = np.where(mode.possible, times, UNLIMITED).min(axis=1)
    least = np.where(mode.possible.any(axis=0), least, 0)
    fastest = (times <= least[:, None]).all(axis=0) & mode.possible
    size = np.where(fastest, mode.fixed + mode.held, UNLIMITED)
    return Quick(least, size.argmin(axis=0), np.asarray(fastest.any(axis=0)))


class Fronts:
    """Fronts of one mode; modes with equal ``key`` (equal differences between variants) may share them."""

    def __init__(self, mode: GraphMode) -> None:
        times = np.array([line.time for line in mode.lines])
        least = quick(mode).least
        kinds: dict[tuple[int, ...], int] = {}
        self._kind: list[int] = []
        self._items: list[list[tuple[int, Array]]] = []
        tables = (mode.fixed, mode.held, mode.peak)
        for g in range(mode.possible.shape[1]):
            rows = [
                (int(v), np.array([*(times[:, v, g] - least[:, g]), *(t[v, g] for t in tables)], np.int64))
                for v in np.flatnonzero(mode.possible[:, g])
            ]
            key = tuple(int(x) for v, row in rows for x in (v, *row))
            if key not in kinds:
                kinds[key] = len(self._items)
                self._items.append(rows)
            self._kind.append(kinds[key])
        self.key = len(mode.lines), tuple(self._kind), tuple(kinds)
        self._cache: dict[Counts, Front] = {(): Front(np.zeros((1, len(times) + 3), np.int64))}
        self._compared = 0

    def options(self, groups: list[int], clock: Clock) -> OptionPoints:
        """Front of a stage that holds these groups."""
        points = self._of(self._counts(groups), clock).points
        return OptionPoints(points[:, :-3].T, points[:, -3], points[:, -2], points[:, -1])

    def variants(self, groups: list[int], point: int) -> tuple[int, ...]:
        """Variant of each of ``groups`` at a point of their front."""
        counts = self._counts(groups)
        chosen: dict[int, list[int]] = {}
        while counts:
            front = self._cache[counts]
            chosen.setdefault(front.kind, []).append(int(front.variant[point]))
            point, counts = int(front.before[point]), _fewer(counts)
        return tuple(chosen[self._kind[g]].pop() for g in groups)

    def _counts(self, groups: list[int]) -> Counts:
        return tuple(sorted(Counter(self._kind[g] for g in groups).items()))

    def _of(self, counts: Counts, clock: Clock) -> Front:
        """Front of these counts, built group by group so that the smaller fronts are cached too.

        Raises
        ------
        OutOfTimeError
        TooLargeError
            If there are too many unlike groups.
        """
        path = []
        while counts not in self._cache:
            path.append(counts)
            counts = _fewer(counts)
        front = self._cache[counts]
        for counts in reversed(path):
            clock.check()
            items = self._items[counts[-1][0]]
            points = np.concatenate([_joined(front.points, row) for _, row in items])
            self._compared += len(points) ** 2
            if self._compared > MOST_COMPARED:
                raise TooLargeError
            kept, size = minimal(points, clock.check), len(front.points)
            variant = np.array([v for v, _ in items])[kept // size]
            front = Front(points[kept], counts[-1][0], kept % size, variant)
            self._cache[counts] = front
        return front


def _fewer(counts: Counts) -> Counts:
    """Counts without one group of the last kind."""
    kind, count = counts[-1]
    return (*counts[:-1], (kind, count - 1)) if count > 1 else counts[:-1]


def _joined(points: Array, row: Array) -> Array:
    """Points with one more group: costs are added, except the peak, which is the larger of both."""
    joined = points + row
    joined[:, -1] = np.maximum(points[:, -1], row[-1])
    return joined
