"""Furthest-end programme: a lower bound and a first allocation of large instances, without a table of spans.

For a target T, the programme finds for each usage how far the stages in front of it can reach at most::

    layers     0 ─────────────── a ──────────────────── e ─────────── n
                stages before      furthest end of w units of kind c
    usage      u                  u                      u − w units of kind c        units from the stage on

    reach(u − w units of c) = max over kinds c and widths w of the last e with

    H + M_w (F + B) ≤ T                                          way back
    A + max(M_w − k, 0) F + (M_w − 1) B ≤ T                      warm-up, F and B of services
    Σ forward before + M_w (F + B) + E ≤ T                       own ending
    H + F + B + (M_w − 1) max(F, B) + Σ late F + B behind ≤ T    way through, of slices
    memory with some recomputation, whose forwards count in B

H and A are those of the fastest kind for each layer. Of two labels of a usage, the one that reaches further is at least
as good: what it leaves to the stages behind is a part of what the other leaves, and a part of a stage that fits, fits
and takes no more time. So one label per usage is enough for a bound. Recomputation is that of the fractional knapsack,
the least k of the in-flight rule counts in memory and the largest in warm-up. The tensors received at the start of a
stage are a lower bound that keeps the argument true: a later start never needs more of them than it drops.

Where kinds take unlike numbers of units, the units from a stage on determine their flow within limits only, from which
k is. So there is a label for each range of the flow of all stages, which narrows them, and H and A are those of
`FlowBounds` for flow and units of the stages before. For an allocation a label has the flow of its own stages.

For an allocation the same programme rounds recomputation up to whole layers, counts the least k everywhere, and keeps
of the labels that reach equally far the one of the least H. There it is a heuristic. T is bisected.

An end is found by bisection too, for all usages of as many units at once, so a run takes O(units · widths · kinds ·
log n) operations on arrays. docs/bounds/allocation.md has the proofs.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pipeplan_formulations.allocation.flow_bounds import FlowBounds, flow_ranges
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.place import Allocation, Place
from pipeplan_formulations.allocation.suffix_bounds.spans import least_forward_before, least_work_before
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.layer_tables import Array, sums_before
from pipeplan_formulations.common.pass_times import Times
from pipeplan_formulations.common.span_options import IMPOSSIBLE

ACCURACY = 2e-3
"""Relative accuracy of the bisection of T."""
MOST_TRACED = 4
"""Allocations that are traced for the least T found."""


@dataclass(frozen=True)
class _Stages:
    """All stages, of any kind and width, with equally many units from the stage on.

    Attributes
    ----------
    kind : array of int, shape (m,)
    part : array of int, shape (m,)
        The range of the flow of all stages.
    usage, behind : array of int, shape (m,)
        Flat usage from the stage on, and behind it.
    w, share, least, most : array of int, shape (m,)
        Index of the width, M_w, and the fewest and most micro-batches in flight.
    flow, before : array of int, shape (2, m)
        The least and the largest flow from the stage on, and before it.
    units : array of int, shape (m,)
        The most units of the stages before.
    """

    kind: Array
    part: Array
    usage: Array
    behind: Array
    w: Array
    share: Array
    least: Array
    most: Array
    flow: Array
    before: Array
    units: Array

    def only(self, chosen: Array) -> "_Stages":
        """The stages with these indices."""
        return _Stages(**{name: row[..., chosen] for name, row in vars(self).items()})

    def holding(self, least: Array) -> "_Stages":
        """The stages with these in-flight counts."""
        return replace(self, least=least)


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
        self._unlike = bool((problem.takes > 1).any())
        self._least_work, self._trip = (least_work_before(problem, role) for role in ("ahead", "trip"))
        self._least_forward = least_forward_before(problem)
        # What the last slice takes behind each boundary.
        self._in_all = problem.late_behind is not None
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
        least = min(1, problem.most_flow) if self._unlike else 0
        ranges = flow_ranges(least, problem.most_flow) if self._unlike else [(least, problem.most_flow)]
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
    def _levels(self) -> list[_Stages]:
        """The stages by the units from them on, all units first."""
        problem, grid = self._problem, self._grid
        widths, levels = np.array(problem.widths), []
        for cells in reversed(grid.levels[1:]):
            modes = [(kind, w, cells[grid.widest[kind, cells] >= problem.widths[w]]) for kind, w in problem.every_mode]
            if not modes:
                break
            kind, w = (np.repeat([mode[i] for mode in modes], [len(mode[2]) for mode in modes]) for i in (0, 1))
            usage = np.concatenate([mode[2] for mode in modes])
            steps = np.array([grid.step(c, widths) for c in range(problem.kinds)])
            levels.append(self._stages(kind, usage, usage - steps[kind, w], w))
        return levels

    def _stages(self, kind: Array, usage: Array, behind: Array, w: Array) -> _Stages:
        """The stages for each range of flows within which they are possible."""
        problem, (low, high) = self._problem, self._ranges
        widths, shares = np.array(problem.widths), np.array([problem.share(width) for width in problem.widths])
        width, (fewest, largest) = widths[w], self._flows
        front = self._front[usage]
        least = np.maximum(width + fewest[behind], low[:, None] - front)
        most = np.minimum(width + largest[behind], high[:, None])
        before = np.stack([np.maximum(low[:, None] - most, 0), np.minimum(high[:, None] - least, front)])
        part, own = np.nonzero((least <= most) & (before[0] <= before[1]))
        flow, before = np.stack([least, most])[:, part, own], before[:, part, own]
        modes = [
            np.stack([getattr(mode, name) for mode in problem.modes[0]]) for name in ("in_flight", "most_in_flight")
        ]
        counts = [np.maximum(k[w[own], f - width[own]], 1) for k, f in zip(modes, flow, strict=True)]
        share = shares[w[own]]
        return _Stages(
            kind=kind[own],
            part=part,
            usage=usage[own],
            behind=behind[own],
            w=w[own],
            share=share,
            least=counts[0],
            most=counts[1] if problem.alternating else share,
            flow=flow,
            before=before,
            units=(sum(self._grid.units) - self._grid.coordinates.sum(axis=0))[usage[own]],
        )

    @cached_property
    def _flows(self) -> tuple[Array, Array]:
        """The least and the largest flow of stages that take the units of each usage."""
        coordinates = self._grid.coordinates
        fewest, largest = (
            sum(each(own, pool) for pool, own in enumerate(coordinates)) for each in (self._fewest, self._largest)
        )
        return np.asarray(fewest), np.asarray(largest)

    def _fewest(self, units: Array, pool: int) -> Array:
        found: Array = -(-units // self._problem.takes[self._problem.pool == pool].max())
        return found

    def _largest(self, units: Array, pool: int) -> Array:
        found: Array = units // self._problem.takes[self._problem.pool == pool].min()
        return found

    @cached_property
    def _front(self) -> Array:
        """The largest flow of the stages before each usage."""
        grid = self._grid
        rows = zip(grid.units, grid.coordinates, strict=True)
        return np.asarray(sum(self._largest(units - own, pool) for pool, (units, own) in enumerate(rows)))

    def _run(self, target: int, whole: bool) -> _Reached | None:
        """Furthest boundaries for a target; None if no usage reaches the last layer. ``whole``: for an allocation."""
        shape = len(self._ranges[0]), self._grid.size
        nowhere, none = np.full(shape, -1), np.zeros(shape, np.int64)
        state = _Reached(self._begin(), none, none.copy(), *(nowhere.copy() for _ in range(4)))
        step = not self._problem.endless  # which has no heads
        flows = FlowBounds(self._problem, target, "ahead") if self._unlike and step else None
        trips = np.full(shape[0], self._trip[-1])
        if flows is not None:
            passing = FlowBounds(self._problem, target, "trip") if self._problem.trip_apart else flows
            trips = np.maximum(trips, passing.of_all(self._ranges[0], self._ranges[1], sum(self._grid.units)))
        for own in self._levels:
            self._clock.check()
            own = own.only(np.flatnonzero(state.end[own.part, own.usage] >= 0))
            if whole and self._unlike:
                own = self._counted(state, own)
            if not len(own.part):
                continue
            at = own.part, own.usage
            start = state.end[at]
            head = state.head[at] if whole else self._head(flows, own, start)
            end = self._furthest(own, start, head, trips[own.part], target, whole)
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

    def _begin(self) -> Array:
        """The first labels: boundary 0 at every usage that all stages may have, by range of flows."""
        least, most = self._ranges[:, :, None]
        if not self._unlike:
            return np.zeros((1, self._grid.size), np.int64)
        fewest, largest = self._flows
        return np.where((least <= largest) & (fewest <= most), 0, -1)

    def _counted(self, state: _Reached, own: _Stages) -> _Stages:
        """The stages with which the flow stays in its range; in-flight counts are for the largest flow that is left."""
        width = np.array(self._problem.widths)[own.w]
        left = np.minimum(own.flow[1], self._ranges[1, own.part] - state.flow[own.part, own.usage])
        some = np.flatnonzero(left >= own.flow[0])
        own, behind = own.only(some), (left - width)[some]
        counts = np.stack([mode.in_flight for mode in self._problem.modes[0]])
        return own.holding(np.maximum(counts[own.w, behind], 1))

    def _head(self, flows: FlowBounds | None, own: _Stages, start: Array) -> Array:
        """A lower bound on H of each stage."""
        if flows is None:
            return self._least_work[start]
        return flows.before(start, own.before[0], own.before[1], own.units, own.kind, own.share)

    def _furthest(self, own: _Stages, start: Array, head: Array, trip: Array, target: int, whole: bool) -> Array:
        """The last end with which each stage stays within the target; its start if there is none.

        ``head`` and ``trip``: H and A at least.
        """
        problem, prefix = self._problem, self._problem.prefix
        forward, backward = prefix["forward"], prefix["backward"]
        step, work = not problem.endless, forward + backward
        first = start == 0
        room = (target - head) // own.share if step else target * problem.divisor // own.share
        # Bisection between the start and the last end whose work alone is within the target.
        low, high = start.copy(), start.copy()
        for each in range(problem.kinds):
            some = np.flatnonzero(own.kind == each)
            most = work[each, start[some]] + np.maximum(room[some], -1)
            high[some] = np.maximum(np.searchsorted(work[each], most, side="right") - 1, start[some])
        while True:
            open_ = np.flatnonzero(low < high)
            if not len(open_):
                return self._last_cut[low]
            open_stages = own.only(open_)
            kind, a, many = open_stages.kind, start[open_], open_stages.share
            middle = (low[open_] + high[open_] + 1) // 2
            again = self._again(open_stages, a, middle, whole)
            recomputed = np.minimum(again, IMPOSSIBLE // (2 * problem.micro_batches))
            f, b = forward[kind, middle] - forward[kind, a], backward[kind, middle] - backward[kind, a] + recomputed
            fits = again < IMPOSSIBLE
            if step:
                ending = problem.endings(kind, open_stages.w, a, middle)
                ahead = np.where(first[open_], 0, self._least_forward[a])
                fits &= (f + b <= room[open_]) & (ahead + many * (f + b) + ending <= target)
                late = np.maximum(many - (open_stages.least if whole else open_stages.most), 0)
                once = np.where(first[open_], ending, 0)
                fits &= trip[open_] + self._delay(Times(f, b), kind, a, middle, late, many) + once <= target
                if self._in_all:
                    through = problem.in_all(0, Times(f, b), many, middle)
                    fits &= (head[open_] + through + once <= target) & (ahead + through + ending <= target)
            else:
                spent, beside = problem.once(kind, open_stages.w, a, middle)
                fits &= (many * (f + b) + spent <= target * problem.divisor) & (beside <= target)
            low[open_] = np.where(fits, middle, low[open_])
            high[open_] = np.where(fits, high[open_], middle - 1)

    def _delay(self, alone: Times, kind: Array, start: Array, end: Array, late: Array, many: Array) -> Array:
        """The one-stage delay e with late forwards, for stages with these F and B of their own."""
        problem = self._problem
        service = problem.times("service", alone, kind, start, end)
        delay: Array = late * service.forward + (many - 1) * service.backward
        longer = problem.longer(alone, problem.times("trip", alone, kind, start, end))
        return delay if longer is None else delay + longer

    def _again(self, own: _Stages, start: Array, end: Array, whole: bool) -> Array:
        """Recomputed forward time; with ``whole`` that of whole layers, otherwise a lower bound."""
        problem = self._problem
        received = None if whole else self._least_received
        spare = problem.spare(own.kind, own.w, start, end, own.least, received)
        found = np.zeros(len(start), np.int64)
        for kind, options in enumerate(problem.options):
            some = np.flatnonzero(own.kind == kind)
            short = some[spare[some] < options.workspace.of(start[some], end[some])]
            if len(short):
                query = options.quick_upper_bound if whole else options.quick_lower_bound
                found[short] = query(start[short], end[short], own.least[short], spare[short])
        return found

    def _head_step(self, own: _Stages, start: Array, end: Array) -> Array:
        """What a stage of an allocation adds to H, with the slowest link behind it; E_0 too, for the first one."""
        problem, prefix = self._problem, self._problem.prefix
        sums = problem.apart.get("ahead") or Times(prefix["forward"], prefix["backward"])
        work = sums.work
        once = np.where(start == 0, problem.endings(own.kind, own.w, start, end), 0)
        if "ahead" not in problem.apart:
            once += self._again(own, start, end, whole=True)
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
