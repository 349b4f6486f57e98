"""A schedule better than any family's for a fixed pipeline, and how much better one could be.

::

    families, starts ──▶ judge (validator's memory, simulator's time) ◀── orders ── CP-SAT, patterns
                           │ the best of them                                        ▲   │
                           └────────────────── hint ─────────────────────────────────┘   └──▶ bound
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeplan.core.pipeline import Pipeline
from pipeplan.core.schedule import Schedule
from pipeplan.core.validate import validate_schedule
from pipeplan.search.scheduling.evaluator import Evaluator
from pipeplan.search.scheduling.families import written
from pipeplan.search.scheduling.instances import Asked, Side, asked, crowded, sides
from pipeplan.search.scheduling.lists import as_orders, as_schedule
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Report, Status, Stop
from pipeplan_formulations.schedule import Orders, PipelineSchedule, evaluate, solve
from pipeplan_formulations.schedule.constructive import constructive
from pipeplan_formulations.schedule.constructive.local_search import annealed
from pipeplan_formulations.schedule.cyclic import solve as solve_by_pattern

FEW = 1200
"""Operations of a row up to which CP-SAT alone looks for their order."""
MANY = 2500
"""Operations of a row from which only patterns do."""
LISTED = 0.1
"""Part of the time for list schedulers, where they are asked by themselves."""
SHAKEN = 0.3
"""Part of it for small changes of what is best, where wires are shared; again of what CP-SAT leaves."""
ENOUGH = 0.003
"""Seconds for each operation after which they hardly find more."""
WAITS = (1, 3)
"""How many times what a tensor occupies wires for it is thought to wait for them, where list schedulers know no
wires."""
BUILT = 0.004
"""Seconds that CP-SAT's model of many operations takes, for each of them."""


@dataclass(frozen=True)
class Found:
    """The best schedule of a pipeline that was found.

    Attributes
    ----------
    schedule : Schedule or None
        That of a family, where nothing better was found.
    value : int or None
        Its simulated nanoseconds.
    bound : int
        No schedule of the pipeline that keeps the memory limits takes less, in any order, on the lanes that its devices
        may have (`pipeplan.search.scheduling.instance.may_have_lanes`).
    status : Status
        What we have.
    stop : Stop
        Why the search ended.

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


def find(
    pipeline: Pipeline,
    micro_batches: int,
    limits: Limits,
    split: bool | Sequence[bool] = True,
    starts: Sequence[Schedule] = (),
    cutoff: int | None = None,
) -> Found:
    """The best schedule of a pipeline within a time limit: any order, backwards split or joined, on the lanes that
    devices may have.

    It is never worse than that of any family that fits where the stages lie, nor than a start.

    Parameters
    ----------
    pipeline : Pipeline
        Its stages all have the same number of replicas.
    micro_batches : int
    limits : Limits
        Time, and the gap at which to be content.
    split : bool or sequence of bool
        The stages whose backwards may be split. Those whose I and W have no times stay joined.
    starts : sequence of Schedule
        Schedules of the pipeline to begin from. Those that do not fit are ignored, and those with two lanes where
        devices have one and may be slower with it (`Evaluator.comparable`).
    cutoff : int, optional
        Nanoseconds: the search ends where it is proved that no schedule takes less.

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
    return search.found(stop)


class _Search:
    def __init__(
        self, pipeline: Pipeline, micro_batches: int, limits: Limits, split: bool | Sequence[bool], cutoff: int | None
    ) -> None:
        self._pipeline, self._micro_batches = pipeline, micro_batches
        self._limits, self._clock, self._cutoff = limits, Clock(limits), cutoff
        self._sides = sides(pipeline, micro_batches, split)
        self._evaluator = Evaluator(pipeline)

    def run(self, starts: Sequence[Schedule]) -> Stop:
        """Search until something says stop."""
        for schedule in starts:
            stages, placement, tied = len(self._pipeline.stages), self._pipeline.placement, self._pipeline.tied
            validate_schedule(schedule, stages, self._micro_batches, placement, tied)
        for schedule in (*starts, *written(self._pipeline, self._micro_batches, self._sides[0].least.split)):
            self._evaluator.offer(schedule)
        if not self._possible:
            return Stop.OPTIMALITY
        every = (question for side in self._possible for question in asked(self._pipeline, self._micro_batches, side))
        questions = [question for question in every if question.problem.possible]
        while questions := [question for question in questions if self._promises(question.side)]:
            if self._ask(questions.pop(0), self._clock.left * (1 - 1 / (len(questions) + 1))):
                return Stop.INTERRUPT
        if self._close:
            return Stop.GAP
        return Stop.TIME if self._clock.left <= 0 else Stop.EXHAUSTED

    def found(self, stop: Stop) -> Found:
        """The answer as it stands."""
        value, bound = self._evaluator.value, self._bound
        status = Status.FEASIBLE
        if value is None:
            status = Status.UNKNOWN if self._possible else Status.INFEASIBLE
        elif value == bound:
            status, stop = Status.OPTIMAL, Stop.OPTIMALITY
        return Found(self._evaluator.best, value, bound, status, stop)

    def _ask(self, question: Asked, until: float) -> bool:
        """Everybody about one instance, until so many seconds are left; whether somebody wants it to end."""
        for answer in (self._list, self._shake, self._pattern, self._order, self._shake):
            report = None if self._close else answer(question, until)
            if report is not None:
                if question.bounds:
                    question.side.bound = max(question.side.bound, report.bound)
                if report.solution is not None:
                    self._offer(report.solution, question.side)
                if report.stop is Stop.INTERRUPT:
                    return True
        return False

    def _list(self, question: Asked, until: float) -> None:
        """Orders of list schedulers: those that think of shared wires, and plain ones that `solve` would not make."""
        problem = question.problem
        variants = [crowded(problem, waits) for waits in WAITS] if problem.sent else []
        if _operations(problem) > FEW:
            variants.append(problem)
        seconds = min(LISTED * (self._clock.left - until), ENOUGH * _operations(problem))
        for variant in variants:
            listed = constructive(variant, seconds / len(variants)) if seconds > 0 else None
            if listed is not None:
                self._offer(listed[1], question.side)

    def _shake(self, question: Asked, until: float) -> None:
        """The best known, changed by little: where wires are shared, CP-SAT may let them serve as lists cannot."""
        problem, seconds = question.problem, SHAKEN * (self._clock.left - until)
        hint = self._hint(problem) if problem.sent and seconds > 0 else None
        if hint is not None:
            _, orders = annealed(problem, hint, seconds, self._limits.seed, question.side.bound)
            self._offer(orders, question.side)

    def _pattern(self, question: Asked, until: float) -> Report[Orders] | None:
        """Steps of many micro-batches repeat a stretch of a few."""
        problem = question.problem
        count, seconds = _operations(problem), self._clock.left - until
        if count <= FEW or seconds <= 0 or problem.sent:  # without its wires it was asked before
            return None
        part = seconds / 2 if _orders_in(seconds / 2, count) else seconds
        return solve_by_pattern(problem, replace(self._limits, time=part), self._hint(problem))

    def _order(self, question: Asked, until: float) -> Report[Orders] | None:
        """Every operation by itself."""
        problem, seconds = question.problem, self._clock.left - until
        count = _operations(problem)
        if seconds <= 0 or not _orders_in(seconds, count):
            return None
        backend = "auto" if count <= FEW else "cpsat"  # of many, patterns were asked before
        return solve(problem, replace(self._limits, time=seconds), self._hint(problem), backend=backend)

    def _hint(self, problem: PipelineSchedule) -> Orders | None:
        """The best known of the problem's orders."""
        best: tuple[int, Orders] | None = None
        for schedule in self._evaluator.kept:
            orders = as_orders(schedule, self._pipeline, problem)
            value = None if orders is None else evaluate(problem, orders)
            if orders is not None and value is not None and (best is None or value < best[0]):
                best = value, orders
        return None if best is None else best[1]

    def _offer(self, orders: Orders, side: Side) -> None:
        self._evaluator.offer(as_schedule(orders, self._pipeline, self._micro_batches, two_lanes=side.two_lanes))
        self._evaluator.polish()

    def _promises(self, side: Side) -> bool:
        """Whether there may be something better than what is known."""
        return self._evaluator.value is None or side.bound < self._evaluator.value

    @property
    def _possible(self) -> list[Side]:
        """The sides on which there is a schedule at all."""
        return [side for side in self._sides if side.least.possible]

    @property
    def _bound(self) -> int:
        return min(side.bound for side in self._possible or self._sides)

    @property
    def _close(self) -> bool:
        value = self._evaluator.value
        if self._cutoff is not None and self._bound >= self._cutoff:
            return True
        return value is not None and value - self._bound <= self._limits.gap * value


def _orders_in(seconds: float, count: int) -> bool:
    """Whether CP-SAT has time for so many operations."""
    return count <= FEW or (count <= MANY and seconds >= BUILT * count)


def _operations(problem: PipelineSchedule) -> int:
    return problem.micro_batches * sum(len(problem.kinds(s)) for s in range(problem.stages))
