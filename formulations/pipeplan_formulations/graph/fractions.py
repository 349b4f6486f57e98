"""Stages between downsets where the choices of variants are too many to list: least extra time in fractions.

::

    group        3   1 │ 4    0    2          in the order of extra time per byte saved
    variant      ▒▒▒ ▒▒│ ▒░   ░░░  ░░         a stage that needs so many bytes takes the leaner variants of the first
                                              groups, and a part of the next one's: a bound on the time of any choice

Sums over a stage are differences of sums over its two downsets, for each number of groups taken. So all stages that
begin at one downset take one bisection over that number. A plan gets whole variants (`least_choice`).
"""

from math import gcd

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.common.span_knapsack import SpanKnapsack, least_choice
from pipeplan_formulations.graph.bounds import MARGIN, least_places
from pipeplan_formulations.graph.fronts import Quick
from pipeplan_formulations.graph.instance import GraphPartition
from pipeplan_formulations.graph.mode import Array, GraphMode
from pipeplan_formulations.graph.prefix import most_places


def divisible(problem: GraphPartition) -> bool:
    """True if `Fractions` covers the problem: one line in each mode, and variant 1 takes no less time nor peak than 0.

    Fixed bytes must be equal.
    """
    if problem.variants != 2 or any(len(mode.lines) != 1 for mode in problem.modes):
        return False
    for mode in problem.modes:
        both, time = mode.possible.all(axis=0), mode.lines[0].time
        if (both & ((mode.fixed[0] != mode.fixed[1]) | (time[0] > time[1]) | (mode.peak[0] > mode.peak[1]))).any():
            return False
    return True


def first_variants(mode: GraphMode) -> Quick:
    """Variant 0 of each group, where it is possible, else 1."""
    variant = np.where(mode.possible[0], 0, 1)
    least = mode.lines[0].time[variant, np.arange(len(variant))] * mode.possible.any(axis=0)
    return Quick(least[None], variant, np.ones(len(variant), np.bool_))


class Fractions:
    """Bounds of stages of at most ``most`` load, between the downsets whose groups are ``inside``, (downsets, n)."""

    def __init__(self, problem: GraphPartition, inside: NDArray[np.bool_], most: int) -> None:
        self._problem = problem
        every = np.arange(problem.groups)
        # Places that the groups before and behind each downset take at least.
        self._places = most_places(problem)
        self._done = done = inside @ least_places(problem, most, self._places)
        self._before, self._behind = (
            np.maximum(np.ceil(part - MARGIN), 0).astype(np.int64) for part in (done, done[-1] - done)
        )
        # For each mode: the first variant, extra time and bytes saved by the other, the knapsack and its unit.
        self._first, self._extra, self._saved = [], [], []
        self._knapsacks: list[SpanKnapsack] = []
        self._knapsack: list[int] = []
        self._unit: list[int] = []
        known: dict[tuple[bytes, bytes], int] = {}
        for mode in problem.modes:
            fast = first_variants(mode).variant
            time, lean = mode.lines[0].time, 1 - fast
            saved = np.where(mode.possible.all(axis=0), mode.held[0] - mode.held[1], 0)
            saved = np.maximum(saved, 0)
            extra = np.where(saved > 0, time[lean, every] - time[fast, every], 0)
            self._first.append(fast)
            self._extra.append(extra)
            self._saved.append(saved)
            unit = max(gcd(*extra.tolist()), 1)
            key = (extra // unit).tobytes(), saved.tobytes()
            if key not in known:
                known[key] = len(self._knapsacks)
                self._knapsacks.append(SpanKnapsack(extra // unit, saved, inside.T))
            self._knapsack.append(known[key])
            self._unit.append(unit)
        self._which, self._units = np.array(self._knapsack), np.array(self._unit)

    def least_peaks(self, m: int) -> Array:
        """The smaller peak of each group's variants."""
        mode = self._problem.modes[m]
        found: Array = np.where(mode.possible, mode.peak, UNLIMITED).min(axis=0)
        return np.where(mode.possible.any(axis=0), found, 0)

    def within(self, start: int, ends: Array) -> Array:
        """Those of ``ends`` for which there are places enough before, between and behind the two downsets."""
        own = np.ceil(self._done[ends] - self._done[start] - MARGIN)
        found: Array = ends[self._before[start] + own + self._behind[ends] <= self._places]
        return found

    def flows(self, m: int, start: int, ends: Array) -> tuple[Array, Array]:
        """The least and the largest flow behind a stage of this mode from ``start`` to ``ends``."""
        return self._behind[ends], self._places - self._problem.modes[m].flow - self._before[start] + 0 * ends

    def least(self, start: int, modes: Array, ends: Array, flying: Array, need: Array) -> NDArray[np.float64]:
        """Least extra time of stages that need so many bytes less; infinite if they cannot save as many."""
        found = np.zeros(len(ends))
        short = need > 0
        units = -(-need // np.maximum(flying, 1))
        for index, knapsack in enumerate(self._knapsacks):
            own = np.flatnonzero(short & (self._which[modes] == index))
            if len(own):
                cost = knapsack.least(np.full(len(own), start), ends[own], units[own])
                found[own] = cost * self._units[modes[own]]
        return found

    def variants(
        self, m: int, groups: list[int], flying: int, received: int
    ) -> tuple[tuple[int, ...], int | None, bool]:
        """Variants of a stage's groups with so many micro-batches in flight; they fit if any do.

        Returned too are their extra time, None if none fit, and if no others take less.
        """
        mode, own = self._problem.modes[m], np.array(groups)
        fast = self._first[m][own]
        useful = np.flatnonzero(self._saved[m][own])
        spare = mode.limit - int(mode.fixed[fast, own].sum()) - flying * (int(mode.held[fast, own].sum()) + received)
        workspace = int(mode.peak[fast, own].max())
        chosen, proved = least_choice(
            self._extra[m][own[useful]],
            self._saved[m][own[useful]],
            mode.peak[1 - fast, own][useful],
            workspace,
            max(flying, 1),
            spare,
        )
        if chosen is None:
            return tuple(fast.tolist()), None, proved
        fast[useful[chosen]] = 1 - fast[useful[chosen]]
        return tuple(fast.tolist()), int(self._extra[m][own[useful[chosen]]].sum()), proved
