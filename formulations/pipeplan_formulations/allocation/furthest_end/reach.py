"""The furthest end of stages within a target, from given starts.

Between a start and its furthest end every end keeps to the target, so ends are found by bisection, of all stages at
once.
"""

from typing import Protocol

import numpy as np

from pipeplan_formulations.allocation.furthest_end.stages import Modes
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.spans import least_forward_before, least_work_before
from pipeplan_formulations.common.layer_tables import Array, sums_before
from pipeplan_formulations.common.pass_times import Times
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.common.span_options import IMPOSSIBLE


class RoundTrips(Protocol):
    """A and C for each of some stages, by their ends."""

    def through(self, stages: Array, ends: Array, work: Array) -> Array:
        """A lower bound on A of the stages with these indices, ends, and F + B."""

    def behind(self, stages: Array, ends: Array, late: Array) -> tuple[Array, Array]:
        """Lower bounds on H and C of these stages, for two trips with so many late F + B."""


class Reach:
    """Stages of one instance, and the rows that they keep to.

    Attributes
    ----------
    least_work : array of int, shape (n + 1,)
        The least H at each boundary.
    last_cut : array of int, shape (n + 1,)
        The last allowed boundary up to each boundary.
    """

    def __init__(self, problem: ChainAllocation) -> None:
        self._problem = problem
        self.least_work, self._least_forward = least_work_before(problem, "ahead"), least_forward_before(problem)
        # What the last slice takes behind each boundary.
        self._in_all = problem.late_behind is not None
        allowed = np.concatenate([[True], problem.cuts, [True]])
        self.last_cut: Array = np.maximum.accumulate(np.where(allowed, np.arange(problem.layers + 1), 0))
        # The least of what is received later and what is held until then: non-decreasing by at most what is held.
        held = sums_before(problem.least_held)
        self._least_received = held + np.minimum.accumulate(problem.received_at - held, axis=-1)

    def furthest(
        self,
        own: Modes,
        start: Array,
        head: Array,
        trip: Array,
        target: int,
        whole: bool = False,
        trips: RoundTrips | None = None,
        once: tuple[int, int] = (0, UNLIMITED),
    ) -> Array:
        """The last end with which each stage stays within the target; its start if there is none.

        ``head`` and ``trip``: H and A at least; ``trips``: A by the end. ``whole``: as in `again`, and with the fewest
        micro-batches in flight. ``once``: the least and the largest E_0.
        """
        problem, prefix = self._problem, self._problem.prefix
        forward, backward = prefix["forward"], prefix["backward"]
        step, work = not problem.endless, forward + backward
        first, (least, largest) = start == 0, once
        room = (target - head - least) // own.share if step else target * problem.divisor // own.share
        # Bisection between the start and the last end whose work alone is within the target.
        low, high = start.copy(), start.copy()
        for each in range(problem.kinds):
            some = np.flatnonzero(own.kind == each)
            most = work[each, start[some]] + np.maximum(room[some], -1)
            high[some] = np.maximum(np.searchsorted(work[each], most, side="right") - 1, start[some])
        while True:
            open_ = np.flatnonzero(low < high)
            if not len(open_):
                return self.last_cut[low]
            modes = own.modes(open_)
            kind, a, many = modes.kind, start[open_], modes.share
            middle = (low[open_] + high[open_] + 1) // 2
            again = self.again(modes, a, middle, whole)
            recomputed = np.minimum(again, IMPOSSIBLE // (2 * problem.micro_batches))
            f, b = forward[kind, middle] - forward[kind, a], backward[kind, middle] - backward[kind, a] + recomputed
            fits = again < IMPOSSIBLE
            if step:
                ending = problem.endings(kind, modes.w, a, middle)
                ahead = np.where(first[open_], 0, self._least_forward[a])
                begins = np.maximum(ahead, problem.waits(kind, modes.w, a, middle))
                fits &= (f + b <= room[open_]) & (begins + many * (f + b) + ending <= target)
                late = np.maximum(many - (modes.least if whole else modes.most), 0)
                finish = np.where(first[open_], np.maximum(ending, least), least)
                fits &= np.where(first[open_], ending, 0) <= largest
                passed = trip[open_] if trips is None else np.maximum(trip[open_], trips.through(open_, middle, f + b))
                fits &= passed + self._delay(Times(f, b), kind, a, middle, late, many) + finish <= target
                if problem.trips_twice:
                    fits &= self._twice(late, f + b, head, trip, trips, open_, middle) + finish <= target
                if self._in_all:
                    through = problem.in_all(0, Times(f, b), many, middle)
                    fits &= (head[open_] + through + finish <= target) & (ahead + through + ending <= target)
            else:
                spent, beside = problem.once(kind, modes.w, a, middle)
                fits &= (many * (f + b) + spent <= target * problem.divisor) & (beside <= target)
            low[open_] = np.where(fits, middle, low[open_])
            high[open_] = np.where(fits, high[open_], middle - 1)

    def _twice(
        self,
        late: Array,
        work: Array,
        head: Array,
        trip: Array,
        trips: RoundTrips | None,
        open_: Array,
        ends: Array,
    ) -> Array:
        """The two trips of stages with so many late F + B, without E_0; 0 where there are none."""
        if trips is None:
            head, behind = head[open_], self.least_work[-1] - self.least_work[ends]
        else:
            head, behind = trips.behind(open_, ends, late)
        passed = np.maximum(trip[open_], head + work + behind)
        found: Array = (late > 0) * (passed + late * work + behind)
        return found

    def largest_once(self, target: int, modes: Modes) -> int:
        """The largest E_0 of a stage of some modes whose work alone is within the target; 0 in an endless pipeline."""
        if self._problem.endless or not len(modes.kind):
            return 0
        start = np.zeros_like(modes.kind)
        end = self.furthest(modes, start, start, start, target)
        return int(self._problem.endings(modes.kind, modes.w, start, end).max())

    def _delay(self, alone: Times, kind: Array, start: Array, end: Array, late: Array, many: Array) -> Array:
        """The one-stage delay e with late forwards, for stages with these F and B of their own."""
        problem = self._problem
        service = problem.times("service", alone, kind, start, end)
        delay: Array = late * service.forward + (many - 1) * service.backward
        longer = problem.longer(alone, problem.times("trip", alone, kind, start, end))
        return delay if longer is None else delay + longer

    def again(self, own: Modes, start: Array, end: Array, whole: bool) -> Array:
        """Recomputed forward time; with ``whole`` that of whole layers, otherwise a lower bound."""
        problem = self._problem
        received = None if whole else self._least_received
        spare = problem.spare(own.kind, own.w, start, end, own.least, received)
        found = np.zeros(len(start), np.int64)
        for kind, options in enumerate(problem.options):
            some = np.flatnonzero(own.kind == kind)
            short = some[spare[some] < options.workspace.of(start[some], end[some])]
            if len(short):
                query = options.quick_upper_bound if whole else options.closer_lower_bound
                found[short] = query(start[short], end[short], own.least[short], spare[short])
        return found
