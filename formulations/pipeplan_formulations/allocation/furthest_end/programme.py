"""Furthest-end programme: a lower bound and a first allocation of large instances, without a table of spans.

For a target T, the programme finds for each usage how far the stages in front of it can reach at most::

    layers     0 ─────────────── a ──────────────────── e ─────────── n
                stages before      furthest end of w units of kind c
    usage      u                  u                      u − w units of kind c        units from the stage on

    reach(u − w units of c) = max over kinds c and widths w of the last e with

    H + M_w (F + B) ≤ T                                          way back
    A + max(M_w − k, 0) F + (M_w − 1) B ≤ T                      warm-up, F and B of services
    H + (M_w − k + 1) (F + B) + 2 C ≤ T                          two trips, C of the layers behind
    max(Σ forward before, W) + M_w (F + B) + E ≤ T               own ending
    H + F + B + (M_w − 1) max(F, B) + Σ late F + B behind ≤ T    way through, of slices
    memory with some recomputation, whose forwards count in B

H and A are those of the fastest kind for each layer. Of two labels of a usage, the one that reaches further is at least
as good: what it leaves to the stages behind is a part of what the other leaves, and a part of a stage that fits, fits
and takes no more time. So one label per usage is enough for a bound. Recomputation is that of the fractional knapsack,
the least k of the in-flight rule counts in memory and the largest in warm-up. The tensors received at the start of a
stage are a lower bound that keeps the argument true: a later start never needs more of them than it drops.

Where all stages have one width, a target that this does not exclude is tried for ranges of the first stage's E_0: that
stage keeps to the largest, and H and A of all have the least. Then it is tried with each stage once for every range of
its counts, of which memory has the first and warm-up the last; then with H and A of `PricedLayers`, which stages on all
devices together can reach.

Where kinds take unlike numbers of units, the units from a stage on determine their flow within limits only, from which
k is. So there is a label for each range of the flow of all stages, which narrows them, and H and A are those of
`FlowBounds` for flow and units of the stages before. For an allocation a label has the flow of its own stages.

For an allocation the same programme rounds recomputation up to whole layers, counts the least k everywhere, and keeps
of the labels that reach equally far the one of the least H. There it is a heuristic. T is bisected.

An end is found by bisection too, for all usages of as many units at once, so a run takes O(units · widths · kinds ·
log n) operations on arrays. docs/bounds/allocation.md has the proofs.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from pipeplan_formulations.allocation.flow_bounds import FlowBounds
from pipeplan_formulations.allocation.furthest_end.priced_layers import PricedLayers
from pipeplan_formulations.allocation.furthest_end.reach import Reach
from pipeplan_formulations.allocation.furthest_end.stages import Stages, StageTables
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.place import Allocation, Place
from pipeplan_formulations.allocation.suffix_bounds.spans import least_work_before
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.common.pass_times import Times
from pipeplan_formulations.common.sentinels import UNLIMITED

ACCURACY = 2e-3
"""Relative accuracy of the bisection of T."""
FIRST_STEP = 0.1
"""Relative step above a bound that priced layers try to raise."""
ROUNDS = 2
"""Most times that layers are priced for the first target: prices raise A, and A excludes stages."""
WORTH = 2e-3
"""A further time has to be worth at least this share of A."""
CLOSE = 5e-3
"""Ranges of E_0 are divided until they are so narrow, relative to T."""
MOST_TRACED = 4
"""Allocations that are traced for the least T found."""


@dataclass(frozen=True)
class _Reached:
    """State of one run: the furthest boundary by range of flows and usage, its H and flow, and the stage before it.

    The end of a usage at which no stage can begin is −1.
    """

    end: Array
    head: Array
    flow: Array
    start: Array
    before: Array
    kind: Array
    w: Array


class FurthestEnd:
    """The programme for one instance without forced modes; see the module."""

    def __init__(self, problem: ChainAllocation, clock: Clock) -> None:
        self._problem, self._clock, self._grid = problem, clock, Grid(problem, flow=False)
        self._tables, self._reach = StageTables(problem, self._grid), Reach(problem)
        self._trip = int(least_work_before(problem, "trip")[-1])
        # The slowest send and send back at each boundary; none at either end.
        sends = (problem.send + problem.send_back).max(axis=(0, 1, 2))
        self._sends = np.concatenate([[0], sends, [0]])

    def lower_bound(self, low: int, high: int, accuracy: float = ACCURACY, closely: bool = True) -> int:
        """The largest T between ``low`` and ``high``, to the accuracy, such that no allocation is below T.

        ``low`` is a known bound. If the time is over, the largest T that was found. Without ``closely`` layers have no
        price, and ranges of counts only help to exclude the largest T: that takes a tenth of the time.
        """
        top, priced = high - 1, None
        try:
            if low > top or self._within(top) is None or self._excludes(top):
                return max(low, high)
            if closely and self._prices:
                priced = self._priced(top, None)
                if self._excludes(top, priced):
                    return high
            if top - low <= accuracy * top:
                return low
            begun = closely and self._within(min(int(low * (1 + accuracy)), top)) is not None  # found without prices
        except OutOfTimeError:
            return low
        if not begun:
            low = self._bisected(low, top, accuracy, self._within)[0]
        return self._raised(low, top, accuracy, priced) if closely else low

    def _raised(self, low: int, high: int, accuracy: float, above: PricedLayers | None) -> int:
        """``low`` raised by stages for each range of counts, and by layers at a price.

        From ``low`` upwards, in ever longer steps as long as targets are excluded, then halves. ``above``: the prices
        for ``high``.
        """
        step = FIRST_STEP
        try:
            while high - low > accuracy * high:
                middle = min(int(low * (1 + step)) + 1, max(int((max(low, 1) * high) ** 0.5), low), high - 1)
                excluded = self._excludes(middle)
                if not excluded and self._prices:
                    priced = self._priced(middle, above)
                    excluded = self._excludes(middle, priced)
                    above = above if excluded else priced
                if excluded:
                    low, step = middle + 1, 2 * step
                else:
                    high = middle
        except OutOfTimeError:
            pass
        return low

    @property
    def _prices(self) -> bool:
        """True if layers are priced: where the flow from a stage on is its usage."""
        problem = self._problem
        return not (problem.endless or problem.apart or self._tables.unlike)

    def least_trip(self, target: int) -> int:
        """A lower bound on A of all allocations within the target."""
        return self._priced(target, None).trip if self._prices else self._trip

    def _excludes(self, target: int, priced: PricedLayers | None = None) -> bool:
        """True if stages for each range of counts show that no allocation is within the target."""
        ranged = self._tables.chooses or priced is not None
        return ranged and self._run(target, priced=priced, ranged=True) is None

    def _within(self, target: int) -> _Reached | None:
        """The state of a run that the target does not exclude; None if it excludes all ranges of E_0.

        With several widths there is one range: a narrow first stage has hardly any E_0.
        """
        alike = len(self._problem.widths) == 1
        waiting = [(0, self._reach.largest_once(target, self._tables.every) if alike else 0)]
        while waiting:
            low, high = waiting.pop()
            found = self._run(target, once=(low, high if alike else UNLIMITED))
            if found is not None and high - low <= CLOSE * target:
                return found
            if found is not None:
                middle = (low + high) // 2
                waiting += [(middle + 1, high), (low, middle)]
        return None

    def _priced(self, target: int, above: PricedLayers | None) -> PricedLayers:
        """Layers at prices for a target; ``above``: for a larger one."""
        trip = self._trip if above is None else above.trip
        for _ in range(ROUNDS if above is None else 1):
            found = PricedLayers(self._problem, self._grid, self._tables, self._reach, target, trip, self._clock)
            before, trip = trip, found.trip
            if trip <= before * (1 + WORTH) or trip > target:
                break
        return found

    def allocations(self, low: int, high: int, accuracy: float = ACCURACY) -> list[Allocation]:
        """Some allocations for the least T between ``low`` and ``high``, to the accuracy, for which there are any.

        If the time is over, those for the least T that was met.
        """
        found = None
        with suppress(OutOfTimeError):
            found = self._run(high, whole=True)
        if found is None:
            return []
        better = self._bisected(low, high, accuracy, partial(self._run, whole=True))[1]
        return self._traced(better or found)

    def _bisected(
        self, low: int, high: int, accuracy: float, run: Callable[[int], _Reached | None]
    ) -> tuple[int, _Reached | None]:
        """The least T of ``low`` … ``high`` that is not excluded, about, and its state; ``high`` is known not to be."""
        found: _Reached | None = None
        try:
            while high - low > accuracy * high:
                middle = min(max(int((max(low, 1) * high) ** 0.5), low), high - 1)
                better = run(middle)
                if better is None:
                    low = middle + 1
                else:
                    found, high = better, middle
        except OutOfTimeError:
            pass
        return low, found

    def _run(
        self,
        target: int,
        whole: bool = False,
        priced: PricedLayers | None = None,
        ranged: bool = False,
        once: tuple[int, int] = (0, UNLIMITED),
    ) -> _Reached | None:
        """Furthest boundaries for a target; None if no usage reaches the last layer. ``whole``: for an allocation.

        ``ranged``: stages for each range of counts. ``once``: the least and the largest E_0.
        """
        tables = self._tables
        shape = len(tables.ranges[0]), self._grid.size
        nowhere, none = np.full(shape, -1), np.zeros(shape, np.int64)
        state = _Reached(tables.begin(), none, none.copy(), *(nowhere.copy() for _ in range(4)))
        step = not self._problem.endless  # which has no heads
        flows = FlowBounds(self._problem, target, "ahead") if tables.unlike and step else None
        trips = np.full(shape[0], self._trip if priced is None else priced.trip)
        if flows is not None:
            passing = FlowBounds(self._problem, target, "trip") if self._problem.trip_apart else flows
            trips = np.maximum(trips, passing.of_all(tables.ranges[0], tables.ranges[1], sum(self._grid.units)))
        for own in tables.by_counts if ranged else tables.levels:
            self._clock.check()
            own = own.only(np.flatnonzero(state.end[own.part, own.usage] >= 0))
            if whole and tables.unlike:
                own = tables.counted(own, state.flow[own.part, own.usage])
            if not len(own.part):
                continue
            at = own.part, own.usage
            start = state.end[at]
            head = state.head[at] if whole else self._head(flows, priced, own, start)
            passed = None if priced is None else priced.trips(own, own.usage, own.behind, start)
            end = self._reach.furthest(own, start, head, trips[own.part], target, whole, passed, once)
            if not whole:
                np.maximum.at(state.end, (own.part, own.behind), end)
                continue
            # An allocation keeps the stage behind each label, and of labels that reach equally far the earliest.
            some = np.flatnonzero((end > start) & (end >= state.end[own.part, own.behind]))
            own, start, end, head = own.only(some), start[some], end[some], head[some]
            heads = head + self._head_step(own, start, end)
            places = own.part * self._grid.size + own.behind
            order = np.lexsort((heads, -end, places))
            first = order[np.flatnonzero(np.diff(places[order], prepend=-1))]
            known = state.end[own.part, own.behind]
            better = first[((end > known) | (heads < state.head[own.part, own.behind]))[first]]
            own, at = own.only(better), (own.part[better], own.behind[better])
            state.end[at], state.head[at], state.start[at] = end[better], heads[better], start[better]
            state.before[at], state.kind[at], state.w[at] = own.usage, own.kind, own.w
            state.flow[at] = state.flow[own.part, own.usage] + np.array(self._problem.widths)[own.w]
        return state if state.end.max() >= self._problem.layers else None

    def _head(self, flows: FlowBounds | None, priced: PricedLayers | None, own: Stages, start: Array) -> Array:
        """A lower bound on H of each stage."""
        if priced is not None:
            return priced.heads(own, own.usage, start)
        if flows is None:
            return self._reach.least_work[start]
        return flows.before(start, own.before[0], own.before[1], own.units, own.kind, own.share)

    def _head_step(self, own: Stages, start: Array, end: Array) -> Array:
        """What a stage of an allocation adds to H, with the slowest link behind it; E_0 too, for the first one."""
        problem, prefix = self._problem, self._problem.prefix
        sums = problem.apart.get("ahead") or Times(prefix["forward"], prefix["backward"])
        work = sums.work
        once = np.where(start == 0, problem.endings(own.kind, own.w, start, end), 0)
        if "ahead" not in problem.apart:
            once += self._reach.again(own, start, end, whole=True)
        steps: Array = work[own.kind, end] - work[own.kind, start] + self._sends[end] + once
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
