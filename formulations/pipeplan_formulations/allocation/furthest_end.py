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

Where kinds take unlike numbers of units, H and A are those of `FlowBounds` for flow and units of the stages before.
Then there is a label for each range of the flow of all stages.

For an allocation the same programme rounds recomputation up to whole layers, counts the least k everywhere, and keeps
of the labels that reach equally far the one of the least H. There it is a heuristic. T is bisected.

An end is found by bisection too, for all usages of as many units at once, so a run takes O(units · widths · kinds ·
log n) operations on arrays. docs/bounds.md has the proofs.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeplan_formulations.allocation.flow_bounds import FlowBounds, flow_ranges
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.place import Allocation, Place
from pipeplan_formulations.allocation.suffix_bounds.spans import least_forward_before, least_work_before
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.layer_tables import Array, Flags, sums_before
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
    """State of one run: the furthest boundary and its H by range of flows and usage, and the stage that reached it.

    The end of a usage at which no stage can begin is −1.
    """

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
        self._least_received = held + np.minimum.accumulate(problem.received_at - held, axis=-1)
        # Ranges of the flow of all stages; one range of all flows where kinds take equally many units.
        ranges = (
            flow_ranges(min(1, problem.most_flow), problem.most_flow) if self._grid.apart else [(0, problem.most_flow)]
        )
        self._ranges = np.array(ranges, np.int64).reshape(-1, 2).T

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
    def _levels(self) -> list[tuple[Array, list[_Stages]]]:
        """The usages and their stages by the flow from these on, the largest flow first."""
        problem, grid = self._problem, self._grid
        widths, shares = np.array(problem.widths), np.array([problem.share(width) for width in problem.widths])
        least, most = (np.stack(counts) for counts in (grid.least_in_flight, grid.most_in_flight))
        if not problem.alternating:
            most = np.broadcast_to(shares[:, None], most.shape)
        levels = []
        for cells in reversed(grid.levels[1:]):
            stages = []
            for kind in range(problem.kinds):
                able = np.flatnonzero(problem.able[kind]).tolist()
                parts = [(cells[grid.widest[kind, cells] >= problem.widths[w]], w) for w in able]
                usage = np.concatenate([np.zeros(0, np.int64), *(part for part, _ in parts)])
                if not len(usage):
                    continue
                w = np.concatenate([np.full(len(part), w) for part, w in parts])
                behind = usage - grid.step(kind, widths[w])
                stages.append(_Stages(kind, usage, behind, w, shares[w], least[w, usage], most[w, usage]))
            levels.append((cells, stages))
        return levels

    def _run(self, target: int, whole: bool) -> _Reached | None:
        """Furthest boundaries for a target; None if no usage reaches the last layer. ``whole``: for an allocation."""
        shape = len(self._ranges[0]), self._grid.size
        nowhere = np.full(shape, -1)
        state = _Reached(self._begin(), np.zeros(shape, np.int64), *(nowhere.copy() for _ in range(4)))
        step = self._problem.objective != "bottleneck"  # which has no heads
        flows = FlowBounds(self._problem, target) if self._grid.apart and step else None
        trips = np.full(shape[0], self._least_work[-1])
        if flows is not None:
            trips = np.maximum(trips, flows.of_all(self._ranges[0], self._ranges[1], sum(self._grid.units)))
        for cells, stages in self._levels:
            self._clock.check()
            if flows is not None:
                known = state.end[:, cells]
                state.end[:, cells] = np.where(self._hopeless(flows, cells, known), -1, known)
            for own in stages:
                # The stages that may begin, for each range of flows.
                part, some = np.nonzero(state.end[:, own.usage] >= 0)
                if not len(some):
                    continue
                if len(some) > len(own.usage) or self._grid.apart:
                    own = own.only(some)
                start = state.end[part, own.usage]
                head = state.head[part, own.usage] if whole else self._head(flows, part, own, start)
                end = self._furthest(own, start, head, trips[part], target, whole)
                if not whole:
                    np.maximum.at(state.end, (part, own.behind), end)
                    continue
                # An allocation keeps the stage behind each label, and of labels that reach equally far the earliest.
                known = state.end[part, own.behind]
                some = np.flatnonzero((end > start) & (end >= known))
                own, part, start, end, known = own.only(some), part[some], start[some], end[some], known[some]
                heads = head[some] + self._head_step(own, start, end)
                better = np.flatnonzero((end > known) | (heads < state.head[part, own.behind]))
                own, at = own.only(better), (part[better], own.behind[better])
                state.end[at], state.head[at], state.start[at] = end[better], heads[better], start[better]
                state.before[at], state.kind[at], state.w[at] = own.usage, own.kind, own.w
        return state if state.end.max() >= self._problem.layers else None

    def _begin(self) -> Array:
        """The first labels: boundary 0 at every usage that all stages may have, by range of flows."""
        least, most = self._ranges[:, :, None]
        return np.where((least <= self._grid.total) & (self._grid.total <= most), 0, -1)

    def _hopeless(self, flows: FlowBounds, cells: Array, end: Array) -> Flags:
        """True for the labels of some usages, (ranges, cells), from which no stages reach the last layer."""
        grid, (least, most) = self._grid, self._ranges[:, :, None]
        flow, units = grid.total[cells], grid.coordinates[:, cells].sum(axis=0)
        before = np.maximum(least - flow, 0), np.maximum(most - flow, 0), sum(grid.units) - units
        return flows.hopeless(np.maximum(end, 0), before, flow, units)

    def _head(self, flows: FlowBounds | None, part: Array, own: _Stages, start: Array) -> Array:
        """A lower bound on H of each stage, given the range of the flow of all stages."""
        if flows is None:
            return self._least_work[start]
        grid, (least, most) = self._grid, self._ranges[:, part]
        flow, units = grid.total[own.usage], grid.coordinates[:, own.usage].sum(axis=0)
        before = np.maximum(least - flow, 0), most - flow, sum(grid.units) - units
        return flows.before(start, *before, own.kind, own.share)

    def _furthest(self, own: _Stages, start: Array, head: Array, trip: Array, target: int, whole: bool) -> Array:
        """The last end with which each stage stays within the target; its start if there is none.

        ``head`` and ``trip``: H and A at least.
        """
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
                fits &= trip[open_] + late * f + (many - 1) * b + once <= target
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
        parts, usages = np.nonzero(state.end >= problem.layers)
        found: list[Allocation] = []
        for number in np.argsort(state.head[parts, usages], kind="stable").tolist():
            stages: list[Place] = []
            part, at = int(parts[number]), int(usages[number])
            while not stages or stages[-1].start > 0:
                start, kind = int(state.start[part, at]), int(state.kind[part, at])
                stages.append(Place(start, int(state.end[part, at]), kind, problem.widths[int(state.w[part, at])]))
                at = int(state.before[part, at])
            if (allocation := tuple(reversed(stages))) not in found:
                found.append(allocation)
            if len(found) == MOST_TRACED:
                break
        return found
