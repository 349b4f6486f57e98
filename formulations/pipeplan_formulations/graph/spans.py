"""Every stage that could lie between two downsets: its mode, its load, and how much may flow behind it.

What a stage costs is told by the two downsets I ⊂ J that it lies between. Sums over groups are differences of prefix
sums; sums over stars come from `StarSums`. Rows of all modes are stacked, so that one look at I does for all of them::

    mode 0   line 0, line 1, …, fixed, held          a row is a weight for each group, and two for each star
    mode 1   line 0, …, fixed, held
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.clock import Clock
from pipeplan_formulations.graph.downsets import members, words
from pipeplan_formulations.graph.fronts import Fronts
from pipeplan_formulations.graph.mode import UNLIMITED, Array, Mode
from pipeplan_formulations.graph.problem import GraphPartition
from pipeplan_formulations.graph.starsums import StarSums

ANY = 2**31
"""As much may flow behind as there is."""


@dataclass(frozen=True)
class Spans:
    """Stages that begin at one downset, least load first: parallel arrays, one entry a stage.

    ``end`` is the downset where the stage ends, ``most`` the most that may flow behind it, ``point`` the entry of the
    front of variants (−1 where there is nothing to choose).
    """

    mode: Array
    end: Array
    load: Array
    most: Array
    point: Array

    def upto(self, load: int) -> int:
        """How many are of at most this load."""
        return int(np.searchsorted(self.load, load, side="right"))


class SpanTable:
    """Costs of all stages between the downsets of a family, which is sorted by size."""

    def __init__(self, problem: GraphPartition, downsets: Sequence[int], clock: Clock) -> None:
        self._problem, self._clock = problem, clock
        self._words = words(downsets, problem.groups)
        self._members = members(downsets, problem.groups)
        self.fronts = _fronts(problem) if problem.variants > 1 else ()
        groups, leave, enter, self._first = _rows(problem, self.fronts)
        inside = self._members.T.astype(np.int64)
        self._prefix = groups @ inside
        self._forbidden = np.array([~mode.possible.any(axis=0) for mode in problem.modes], np.int64) @ inside
        self._stars = StarSums(problem, self._members, leave, enter)

    def after(self, start: int, most: int) -> Spans:
        """The stages of load ``most`` or less that begin at downset ``start``."""
        ends = start + 1 + np.flatnonzero(self._above(start))
        sums = self._prefix[:, ends] - self._prefix[:, start, None] + self._stars.between(start, ends)
        found = [self._of_mode(m, start, ends, sums, most) for m in range(len(self._problem.modes))]
        mode = np.repeat(np.arange(len(found)), [len(part[0]) for part in found])
        end, load, flow, point = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.argsort(load, kind="stable")
        return Spans(mode[order], end[order], load[order], flow[order], point[order])

    def groups(self, start: int, end: int) -> list[int]:
        """What lies between two downsets."""
        return [int(g) for g in np.flatnonzero(self._members[end] & ~self._members[start])]

    def variants(self, mode: int, start: int, end: int, point: int) -> tuple[int, ...]:
        """The variant of each group of a stage."""
        groups = self.groups(start, end)
        if point < 0:
            return (0,) * len(groups)
        fronts = self.fronts[mode]
        return fronts.variants(groups, fronts.front(groups, self._clock).choices[point])

    def _above(self, start: int) -> NDArray[np.bool_]:
        """Which of the later downsets hold this one."""
        holds = np.ones(self._words.shape[1] - start - 1, np.bool_)
        for word in self._words:
            holds &= word[start + 1 :] & word[start] == word[start]
        return holds

    def _of_mode(self, m: int, start: int, ends: Array, sums: Array, most: int) -> tuple[Array, Array, Array, Array]:
        """End, load, flow behind and point of the stages of one mode."""
        mode, first = self._problem.modes[m], self._first[m]
        lines = sums[first : first + len(mode.lines)] + np.array([[line.base] for line in mode.lines])
        shares = np.array([[line.share] for line in mode.lines])
        load = (-(-lines // shares)).max(axis=0)
        kept = np.flatnonzero((load <= most) & (self._forbidden[m, ends] == self._forbidden[m, start]))
        fixed, held = sums[first + len(mode.lines), kept], sums[first + len(mode.lines) + 1, kept]
        if self.fronts:
            return self._chosen(m, start, ends[kept], lines[:, kept], held, most)
        peak = np.zeros(len(kept), np.int64)
        if mode.peak.any() and mode.limit < UNLIMITED:
            own = self._members[ends[kept]] & ~self._members[start]
            peak = np.where(own, mode.peak[0], 0).max(axis=1, initial=0)
        flow = _most_behind(mode, fixed, held, peak)
        fits = flow >= 0
        return ends[kept][fits], load[kept][fits], flow[fits], np.full(int(fits.sum()), -1)

    def _chosen(
        self, m: int, start: int, ends: Array, lines: Array, received: Array, most: int
    ) -> tuple[Array, Array, Array, Array]:
        """The same where each group's variant is open: every point of the front that lets more flow behind."""
        mode, rows = self._problem.modes[m], []
        for i, end in enumerate(ends):
            points = self.fronts[m].front(self.groups(start, int(end)), self._clock).points
            count = len(mode.lines)
            load = (-(-(lines[:, i] + points[:, :count]) // [line.share for line in mode.lines])).max(axis=1)
            fixed, held, peak = points[:, count:].T
            flow = _most_behind(mode, fixed, held + received[i], peak)
            best = -1
            for point in np.lexsort((-flow, load)):
                if load[point] <= most and flow[point] > best:
                    best = int(flow[point])
                    rows.append((int(end), int(load[point]), best, int(point)))
        table = np.array(rows, np.int64).reshape(len(rows), 4).T
        return table[0], table[1], table[2], table[3]


def _fronts(problem: GraphPartition) -> tuple[Fronts, ...]:
    """One a mode; modes of the same front share it, as replicas of one stage do."""
    known: dict[object, Fronts] = {}
    found = []
    for mode in problem.modes:
        fronts = Fronts(mode)
        found.append(known.setdefault(fronts.key, fronts))
    return tuple(found)


def _rows(problem: GraphPartition, fronts: tuple[Fronts, ...]) -> tuple[Array, Array, Array, list[int]]:
    """The stacked rows: groups, stars that leave, stars that enter; and where each mode begins.

    Where variants are open, a line counts the least time, and what stays and is held is left to the front.
    """
    first: list[int] = []
    groups: list[Array] = []
    leave: list[Array] = []
    enter: list[Array] = []
    none, nothing = np.zeros(len(problem.stars), np.int64), np.zeros(problem.groups, np.int64)
    for m, mode in enumerate(problem.modes):
        first.append(len(groups))
        for number, line in enumerate(mode.lines):
            groups.append(fronts[m].least[number] if fronts else line.time[0])
            leave.append(line.leave)
            enter.append(line.enter)
        groups += [nothing, nothing] if fronts else [mode.fixed[0], mode.held[0]]
        leave += [none, none]
        enter += [none, mode.received]
    return np.array(groups), np.array(leave), np.array(enter), first


def _most_behind(mode: Mode, fixed: Array, held: Array, peak: Array) -> Array:
    """The most that may flow behind stages of these sizes; `ANY` where it never matters, −1 where they never fit."""
    free = mode.limit - fixed - peak
    flying = np.where(held > 0, free // np.maximum(held, 1), ANY)
    at = np.searchsorted(mode.in_flight, flying, side="right") - 1
    behind = np.where(at == len(mode.in_flight) - 1, ANY, at)
    result: Array = np.where(free < 0, -1, behind)
    return result
