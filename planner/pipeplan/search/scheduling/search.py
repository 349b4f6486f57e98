"""Search for the best schedule of a fixed pipeline, with a proven lower bound on its makespan.

::

    families, starts ──▶ Evaluator (validator's memory, simulator's time) ◀── orders ── CP-SAT, rules
                           │ the best of them                                            ▲   │
                           └────────────────── hint ─────────────────────────────────────┘   └──▶ bound
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Schedule
from pipeplan.core.validate import validate_schedule
from pipeplan.search.scheduling.evaluator import Evaluator
from pipeplan.search.scheduling.families import family_schedules
from pipeplan.search.scheduling.instances import LaneMode, Subproblem, lane_modes, subproblems
from pipeplan.search.scheduling.lists import as_orders, as_schedule
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Report, Status, Stop
from pipeplan_formulations.schedule import Orders, PipelineSchedule, evaluate, solve
from pipeplan_formulations.schedule.constructive.local_search import annealed

ANNEALING_SHARE = 0.3
"""Share of the time for annealing the best schedule, where links are shared; once more of the time after CP-SAT."""


@dataclass(frozen=True)
class ScheduleResult:
    """The best schedule that a search found for a pipeline, with a proven bound.

    Attributes
    ----------
    schedule : Schedule or None
        A family's schedule, where nothing better was found.
    value : int or None
        Simulated step time in nanoseconds.
    bound : int
        Lower bound in nanoseconds on all schedules that keep the memory limits, in any order, on the lanes that devices
        may have (`pipeplan.search.scheduling.instance.may_have_lanes`).
    status : Status
        Whether the schedule is optimal or feasible, or none exists or is known.
    stop : Stop
        Reason for the end of the search.

    Raises
    ------
    ValueError
        If the parts contradict each other.
    """

    schedule: Schedule | None
    value: int | None
    bound: int
    status: Status
    stop: Stop

    def __post_init__(self) -> None:
        if (self.schedule is None) != (self.value is None):
            raise ValueError(f"a schedule of {self.value} ns: {self.schedule}")
        if (self.value is not None) != (self.status in (Status.OPTIMAL, Status.FEASIBLE)):
            raise ValueError(f"status {self.status} does not fit a value of {self.value}")
        if self.value is not None and self.bound > self.value:
            raise ValueError(f"bound {self.bound} lies above the value {self.value}")

    @property
    def gap(self) -> float | None:
        """(value − bound) / value; None without a schedule, 0 for a value of 0."""
        if self.value is None:
            return None
        return (self.value - self.bound) / self.value if self.value else 0.0


def find_schedule(
    pipeline: Pipeline,
    micro_batches: int,
    limits: Limits,
    split: bool | Sequence[bool] = True,
    starts: Sequence[Schedule] = (),
    cutoff: int | None = None,
) -> ScheduleResult:
    """Search for the best schedule of a pipeline within a time limit.

    The search covers all orders, backwards split or joined, on the lanes that devices may have. The result is never
    worse than the schedule of a family that fits these stages and devices, nor than a start.

    Parameters
    ----------
    pipeline : Pipeline
        All stages have the same number of replicas.
    micro_batches : int
    limits : Limits
        Time limit, and the relative gap at which the search ends.
    split : bool or sequence of bool
        The stages whose backwards may be split. Those whose I and W have no times stay joined.
    starts : sequence of Schedule
        Schedules of the pipeline to start from. Those that do not fit are ignored. So are those with two lanes where
        devices have one and may be slower with it (`Evaluator.comparable`).
    cutoff : int, optional
        Nanoseconds: the search ends as soon as it has proved that no schedule takes less.

    Raises
    ------
    InputError
        If the pipeline has no instance (`schedule_problem`).
    PlanError
        If a start is no schedule of the pipeline.
    """
    search = _Search(pipeline, micro_batches, limits, split, cutoff)
    try:
        stop = search.run(starts)
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
    return search.result(stop)


class _Search:
    def __init__(
        self, pipeline: Pipeline, micro_batches: int, limits: Limits, split: bool | Sequence[bool], cutoff: int | None
    ) -> None:
        self._pipeline, self._micro_batches = pipeline, micro_batches
        self._limits, self._clock, self._cutoff = limits, Clock(limits), cutoff
        self._modes = lane_modes(pipeline, micro_batches, split)
        self._evaluator = Evaluator(pipeline)

    def run(self, starts: Sequence[Schedule]) -> Stop:
        """Search until the gap is closed, all subproblems are solved or the time is over."""
        for schedule in starts:
            stages, placement, tied = len(self._pipeline.stages), self._pipeline.placement, self._pipeline.tied
            validate_schedule(schedule, stages, self._micro_batches, placement, tied)
        split = self._modes[0].relaxation.split
        for schedule in (*starts, *family_schedules(self._pipeline, self._micro_batches, split)):
            self._evaluator.submit(schedule)
        if not self._possible:
            return Stop.OPTIMALITY
        every = (each for mode in self._possible for each in subproblems(self._pipeline, self._micro_batches, mode))
        open_problems = [each for each in every if each.problem.possible]
        while open_problems := [each for each in open_problems if self._may_improve(each.mode)]:
            if self._solve(open_problems.pop(0), self._clock.left * (1 - 1 / (len(open_problems) + 1))):
                return Stop.INTERRUPT
        if self._close:
            return Stop.GAP
        return Stop.TIME if self._clock.left <= 0 else Stop.EXHAUSTED

    def result(self, stop: Stop) -> ScheduleResult:
        """Return the best schedule and bound so far."""
        value, bound = self._evaluator.value, self._bound
        status = Status.FEASIBLE
        if value is None:
            status = Status.UNKNOWN if self._possible else Status.INFEASIBLE
        elif value == bound:
            status, stop = Status.OPTIMAL, Stop.OPTIMALITY
        return ScheduleResult(self._evaluator.best, value, bound, status, stop)

    def _solve(self, subproblem: Subproblem, until: float) -> bool:
        """Run all methods on a subproblem until ``until`` seconds are left; return True if the user interrupted."""
        anneal = self._by_annealing
        for method in (anneal, self._by_solver, anneal):
            report = None if self._close else method(subproblem, until)
            if report is not None:
                if subproblem.bounds:
                    subproblem.mode.bound = max(subproblem.mode.bound, report.bound)
                if report.solution is not None:
                    self._submit(report.solution, subproblem.mode)
                if report.stop is Stop.INTERRUPT:
                    return True
        return False

    def _by_annealing(self, subproblem: Subproblem, until: float) -> None:
        """Anneal the best known orders where links are shared: CP-SAT may use link orders that no list has."""
        problem, seconds = subproblem.problem, ANNEALING_SHARE * (self._clock.left - until)
        hint = self._hint(problem) if problem.sent and seconds > 0 else None
        if hint is not None:
            _, orders = annealed(problem, hint, seconds, self._limits.seed, subproblem.mode.bound)
            self._submit(orders, subproblem.mode)

    def _by_solver(self, subproblem: Subproblem, until: float) -> Report[Orders] | None:
        """Solve for an order of all operations."""
        problem, seconds = subproblem.problem, self._clock.left - until
        if seconds <= 0:
            return None
        return solve(problem, replace(self._limits, time=seconds), self._hint(problem))

    def _hint(self, problem: PipelineSchedule) -> Orders | None:
        """The best known orders for the problem."""
        best: tuple[int, Orders] | None = None
        for schedule in self._evaluator.kept:
            orders = as_orders(schedule, self._pipeline, problem)
            value = None if orders is None else evaluate(problem, orders)
            if orders is not None and value is not None and (best is None or value < best[0]):
                best = value, orders
        return None if best is None else best[1]

    def _submit(self, orders: Orders, mode: LaneMode) -> None:
        self._evaluator.submit(as_schedule(orders, self._pipeline, self._micro_batches, two_lanes=mode.two_lanes))
        self._evaluator.polish()

    def _may_improve(self, mode: LaneMode) -> bool:
        """Return True if a lane mode may hold a schedule better than the incumbent."""
        return self._evaluator.value is None or mode.bound < self._evaluator.value

    @property
    def _possible(self) -> list[LaneMode]:
        """The lane modes for which a schedule exists."""
        return [mode for mode in self._modes if mode.relaxation.possible]

    @property
    def _bound(self) -> int:
        return min(mode.bound for mode in self._possible or self._modes)

    @property
    def _close(self) -> bool:
        value = self._evaluator.value
        if self._cutoff is not None and self._bound >= self._cutoff:
            return True
        return value is not None and value - self._bound <= self._limits.gap * value
