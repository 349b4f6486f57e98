"""Furthest-end programme: a lower bound and a first allocation of large instances, without a table of spans.

For a target T, the programme finds for each usage how far the stages in front of it can reach at most::

    layers     0 ─────────────── a ──────────────────── e ─────────── n
                stages before      furthest end of w units of kind c
    usage      u                  u                      u − w units of kind c        units from the stage on

    reach(u − w units of c) = max over kinds c and widths w of the last e with

    H + M_w (F + B) ≤ T                                          (3)
    A + max(M_w − k, 0) F + (M_w − 1) B ≤ T                      (4)
    Σ forward before + M_w (F + B) + E ≤ T                       the stage's own gradients and update
    (2) with some recomputation, whose forwards count in B

H and A are those of the fastest kind for each layer. Of two labels of a usage, the one that reaches further is at least
as good: what it leaves to the stages behind is a part of what the other leaves, and a part of a stage that fits, fits
and takes no more time. So one label per usage is enough for a bound. Recomputation is that of the fractional knapsack,
the least k of (1) counts in memory and the largest in (4). The tensors received at the start of a stage are a lower
bound that keeps the argument true: a later start never needs more of them than it drops.

For an allocation the same programme rounds recomputation up to whole layers, counts the least k everywhere, and keeps
of the labels that reach equally far the one of the least H. There it is a heuristic. T is bisected.

An end is found by bisection too, for all usages of as many units at once, so a run takes O(units · widths · kinds ·
log n) operations on arrays. docs/bounds.md has the proofs.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.place import Allocation, Place
from pipeplan_formulations.allocation.suffix_bounds.spans import least_forward_before, least_work_before
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.layer_tables import Array, sums_before
from pipeplan_formulations.common.span_options import IMPOSSIBLE

ACCURACY = 2e-3
"""Relative accuracy of the bisection of T."""
MOST_TRACED = 4
"""Allocations that are traced for the least T found."""


@dataclass(frozen=True)
class _Stages:
    """All stages of one kind, of any width, with equally many units from the stage on.

    Attributes
    ----------
    usage, behind : array of int, shape (m,)
        Flat usage from the stage on, and behind it.
    w, share, least, most : array of int, shape (m,)
        Index of the width, M_w, and the fewest and most micro-batches in flight of (1).
    """

    kind: int
    usage: Array
    behind: Array
    w: Array
    share: Array
    least: Array
    most: Array

    def only(self, chosen: Array) -> "_Stages":
        """The stages with these indices."""
        rows = (self.usage, self.behind, self.w, self.share, self.least, self.most)
        return _Stages(self.kind, *(row[chosen] for row in rows))


@dataclass(frozen=True)
class _Reached:
    """State of one run: the furthest boundary and its H by usage, and the stage that reached it."""

    end: Array
    head: Array
    start: Array
    before: Array
    kind: Array
    w: Array


class FurthestEnd:
    """The programme for one instance without forced modes; see the module."""

    def __init__(self, problem: ChainAllocation, clock: Clock) -> None:
        self._problem, self._clock, self._grid = problem, clock, Grid(problem)
        self._least_work = least_work_before(problem)
        self._least_forward = least_forward_before(problem)
        # The slowest send and send back at each boundary; none at either end.
        sends = (problem.send + problem.send_back).max(axis=(0, 1, 2))
        self._sends = np.concatenate([[0], sends, [0]])
        # The last allowed boundary up to each boundary.
        allowed = np.concatenate([[True], problem.cuts, [True]])
        self._last_cut = np.maximum.accumulate(np.where(allowed, np.arange(problem.layers + 1), 0))
        # The least of what is received later and what is held until then: non-decreasing by at most what is held.
        held = sums_before(problem.least_held)
        self._least_received = held + np.minimum.accumulate(problem.received_at - held)

    def lower_bound(self, low: int, high: int, accuracy: float = ACCURACY) -> int:
        """The largest T between ``low`` and ``high``, to the accuracy, such that no allocation is below T.

        ``low`` is a known bound. If the time is over, the largest T that was found.
        """
        return self._bisected(low, high - 1, accuracy, whole=False)[0]

    def allocations(self, low: int, high: int, accuracy: float = ACCURACY) -> list[Allocation]:
        """Some allocations for the least T between ``low`` and ``high``, to the accuracy, for which there are any.

        If the time is over, those for the least T that was met.
        """
        found = self._bisected(low, high, accuracy, whole=True)[1]
        return [] if found is None else self._traced(found)

    def _bisected(self, low: int, high: int, accuracy: float, whole: bool) -> tuple[int, _Reached | None]:
        """The least T of ``low`` … ``high`` that is not excluded, about, and the state of the least one met."""
        found: _Reached | None = None
        try:
            found = self._run(high, whole)
            low = high + 1 if found is None else low
            while high - low > accuracy * high:
                middle = min(max(int((max(low, 1) * high) ** 0.5), low), high - 1)
                better = self._run(middle, whole)
                if better is None:
                    low = middle + 1
                else:
                    found, high = better, middle
        except OutOfTimeError:
            pass
        return low, found

    @cached_property
    def _levels(self) -> list[list[_Stages]]:
        """The stages by the units from them on, all units first."""
        problem, grid = self._problem, self._grid
        widths, shares = np.array(problem.widths), np.array([problem.share(width) for width in problem.widths])
        least, most = (np.stack(counts) for counts in (grid.least_in_flight, grid.most_in_flight))
        if not problem.alternating:
            most = np.broadcast_to(shares[:, None], most.shape)
        levels = []
        for cells in reversed(grid.levels[1:]):
            stages = []
            for kind in range(problem.kinds):
                parts = [(cells[grid.coordinates[kind, cells] >= width], w) for w, width in enumerate(problem.widths)]
                usage = np.concatenate([part for part, _ in parts])
                if not len(usage):
                    continue
                w = np.concatenate([np.full(len(part), w) for part, w in parts])
                behind = usage - widths[w] * grid.stride[kind]
                stages.append(_Stages(kind, usage, behind, w, shares[w], least[w, usage], most[w, usage]))
            levels.append(stages)
        return levels

    def _run(self, target: int, whole: bool) -> _Reached | None:
        """Furthest boundaries for a target; None if no usage reaches the last layer. ``whole``: for an allocation."""
        size, n = self._grid.size, self._problem.layers
        nowhere = np.full(size, -1)
        state = _Reached(np.zeros(size, np.int64), np.zeros(size, np.int64), *(nowhere.copy() for _ in range(4)))
        for stages in self._levels:
            self._clock.check()
            for own in stages:
                start = state.end[own.usage]
                head = state.head[own.usage] if whole else self._least_work[start]
                end = self._furthest(own, start, head, target, whole)
                known = state.end[own.behind]
                if not whole:
                    state.end[own.behind] = np.maximum(known, end)
                    continue
                # An allocation keeps the stage behind each label, and of labels that reach equally far the earliest.
                some = np.flatnonzero((end > start) & (end >= known))
                own, start, end, known = own.only(some), start[some], end[some], known[some]
                heads = head[some] + self._head_step(own, start, end)
                better = np.flatnonzero((end > known) | (heads < state.head[own.behind]))
                own, behind = own.only(better), own.behind[better]
                state.end[behind], state.head[behind], state.start[behind] = end[better], heads[better], start[better]
                state.before[behind], state.kind[behind], state.w[behind] = own.usage, own.kind, own.w
        return state if state.end.max() >= n else None

    def _furthest(self, own: _Stages, start: Array, head: Array, target: int, whole: bool) -> Array:
        """The last end with which each stage stays within the target; its start if there is none."""
        problem, prefix = self._problem, self._problem.prefix
        forward, backward = prefix["forward"][own.kind], prefix["backward"][own.kind]
        step, work = problem.objective != "bottleneck", forward + backward
        first = start == 0
        room = (target - head) // own.share if step else target * problem.divisor // own.share
        # Bisection between the start and the last end whose work alone is within the target.
        low = start.copy()
        high = np.maximum(np.searchsorted(work, work[start] + np.maximum(room, -1), side="right") - 1, start)
        while True:
            open_ = np.flatnonzero(low < high)
            if not len(open_):
                return self._last_cut[low]
            some = own.only(open_)
            a, middle, many = start[open_], (low[open_] + high[open_] + 1) // 2, some.share
            again = self._again(some, a, middle, whole)
            f = forward[middle] - forward[a]
            b = backward[middle] - backward[a] + np.minimum(again, IMPOSSIBLE // (2 * problem.micro_batches))
            ending = (problem.endings if step else problem.reductions)(own.kind, some.w, a, middle)
            fits = again < IMPOSSIBLE
            if step:
                ahead = np.where(first[open_], 0, self._least_forward[a])
                fits &= (f + b <= room[open_]) & (ahead + many * (f + b) + ending <= target)
                late = np.maximum(many - (some.least if whole else some.most), 0)
                once = np.where(first[open_], ending, 0)
                fits &= self._least_work[-1] + late * f + (many - 1) * b + once <= target
            else:
                fits &= many * (f + b) + ending <= target * problem.divisor
            low[open_] = np.where(fits, middle, low[open_])
            high[open_] = np.where(fits, high[open_], middle - 1)

    def _again(self, own: _Stages, start: Array, end: Array, whole: bool) -> Array:
        """Recomputed forward time; with ``whole`` that of whole layers, otherwise a lower bound."""
        problem, options = self._problem, self._problem.options[own.kind]
        received = None if whole else self._least_received
        spare = problem.spare(own.kind, own.w, start, end, own.least, received)
        found = np.zeros(len(start), np.int64)
        short = np.flatnonzero(spare < options.workspace.of(start, end))
        if len(short):
            query = options.quick_upper_bound if whole else options.quick_lower_bound
            found[short] = query(start[short], end[short], own.least[short], spare[short])
        return found

    def _head_step(self, own: _Stages, start: Array, end: Array) -> Array:
        """What a stage of an allocation adds to H, with the slowest link behind it; E_0 too, for the first one."""
        problem, prefix = self._problem, self._problem.prefix
        work = prefix["forward"][own.kind] + prefix["backward"][own.kind]
        once = np.where(start == 0, problem.endings(own.kind, own.w, start, end), 0)
        steps: Array = work[end] - work[start] + self._again(own, start, end, whole=True) + self._sends[end] + once
        return steps

    def _traced(self, state: _Reached) -> list[Allocation]:
        """The allocations behind the usages that reach the last layer, those of the least H first."""
        problem = self._problem
        done = np.flatnonzero(state.end >= problem.layers)
        found = []
        for usage in done[np.argsort(state.head[done], kind="stable")][:MOST_TRACED].tolist():
            stages: list[Place] = []
            at = usage
            while not stages or stages[-1].start > 0:
                start, kind = int(state.start[at]), int(state.kind[at])
                stages.append(Place(start, int(state.end[at]), kind, problem.widths[int(state.w[at])]))
                at = int(state.before[at])
            found.append(tuple(reversed(stages)))
        return found
