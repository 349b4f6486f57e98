"""Automatic back end: CP-SAT, or for many micro-batches list schedules first, and CP-SAT from their result."""

from dataclasses import replace

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.schedule import cpsat, long_steps
from pipeplan_formulations.schedule.cpsat_model import pairs
from pipeplan_formulations.schedule.instance import Orders, PipelineSchedule

FEW = 1_200
"""Most operations of a step that is solved by CP-SAT alone, whatever the time."""
ROUNDS = 4
"""Micro-batches per stage above which a step is long."""
SHARE = 0.5
"""Share of the time for list schedules if CP-SAT runs after them."""
BUILD = 0.004
"""Seconds per operation that CP-SAT takes to build the model of a larger step."""


def solve(
    problem: PipelineSchedule, limits: Limits, hint: Orders | None = None, on_progress: Progress | None = None
) -> Report[Orders]:
    """Solve by CP-SAT, by `long_steps`, or by both in turn; the result is never worse than ``hint``."""
    operations = problem.micro_batches * sum(len(problem.kinds(s)) for s in range(problem.stages))
    few, time = operations <= FEW, (1 - SHARE) * limits.time
    large = pairs(problem) > cpsat.PAIRS or (not few and BUILD * operations > time)
    if not large and (few or problem.micro_batches <= ROUNDS * problem.stages):
        return cpsat.solve(problem, limits, hint, on_progress)
    clock, improved = Clock(limits), _Monotone(on_progress)
    first = long_steps.solve(problem, limits if large else replace(limits, time=SHARE * limits.time), hint, improved)
    if large or first.status is Status.INFEASIBLE or first.stop in (Stop.OPTIMALITY, Stop.GAP, Stop.INTERRUPT):
        return first
    rest = replace(limits, time=clock.left)
    return _both(first, cpsat.solve(problem, rest, first.solution or hint, improved), limits, clock.wall)


def _both(first: Report[Orders], second: Report[Orders], limits: Limits, wall: float) -> Report[Orders]:
    """Report of the second run with the better bound of both; its orders are no worse, as it began with the first's."""
    name, bound, value = f"{first.backend}, {second.backend}", max(first.bound, second.bound), second.objective
    status, stop = second.status, second.stop
    if value is not None and value == bound:
        status, stop = Status.OPTIMAL, Stop.OPTIMALITY
    elif value is not None and value - bound <= limits.gap * value:
        stop = Stop.GAP
    return replace(second, status=status, stop=stop, bound=bound, wall=wall, backend=name)


class _Monotone:
    """Progress callback that forwards only improvements over all runs so far."""

    def __init__(self, on_progress: Progress | None) -> None:
        self._on_progress = on_progress
        self._value: int | None = None
        self._bound = 0

    def __call__(self, value: int | None, bound: int) -> None:
        known = self._value, self._bound
        if value is not None and (self._value is None or value < self._value):
            self._value = value
        self._bound = max(self._bound, bound)
        if self._on_progress is not None and known != (self._value, self._bound):
            self._on_progress(self._value, self._bound)
