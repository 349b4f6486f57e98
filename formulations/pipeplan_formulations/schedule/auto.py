"""The way to solve that fits the size: CP-SAT, or where micro-batches are many patterns first and CP-SAT from there."""

from dataclasses import replace

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.schedule import cpsat, cyclic
from pipeplan_formulations.schedule.cpsat_model import pairs
from pipeplan_formulations.schedule.instance import Orders, PipelineSchedule

FEW = 256
"""Forwards of a step that CP-SAT can be left alone with."""
ROUNDS = 4
"""Micro-batches for each stage from which on a step has a middle that is worth repeating."""
SHARE = 0.5
"""Part of the time for patterns where CP-SAT comes after them."""


def solve(
    problem: PipelineSchedule, limits: Limits, hint: Orders | None = None, progress: Progress | None = None
) -> Report[Orders]:
    """The answer of CP-SAT, of the cyclic form, or what both know together; never worse than ``hint``."""
    large = pairs(problem) > cpsat.PAIRS
    if not large and not _many(problem):
        return cpsat.solve(problem, limits, hint, progress)
    clock, told = Clock(limits), _Monotone(progress)
    first = cyclic.solve(problem, limits if large else replace(limits, time=SHARE * limits.time), hint, told)
    if large or first.status is Status.INFEASIBLE or first.stop in (Stop.OPTIMALITY, Stop.GAP, Stop.INTERRUPT):
        return first
    rest = replace(limits, time=clock.left)
    return _both(first, cpsat.solve(problem, rest, first.solution or hint, told), limits, clock.wall)


def _many(problem: PipelineSchedule) -> bool:
    few = problem.micro_batches * problem.stages <= FEW
    return not few and problem.micro_batches > ROUNDS * problem.stages


def _both(first: Report[Orders], second: Report[Orders], limits: Limits, wall: float) -> Report[Orders]:
    """The better orders and the better bound; the second began with the first's orders, so that its own are as good."""
    name, bound, value = f"{first.backend}, {second.backend}", max(first.bound, second.bound), second.objective
    status, stop = second.status, second.stop
    if value is not None and value == bound:
        status, stop = Status.OPTIMAL, Stop.OPTIMALITY
    elif value is not None and value - bound <= limits.gap * value:
        stop = Stop.GAP
    return replace(second, status=status, stop=stop, bound=bound, wall=wall, backend=name)


class _Monotone:
    """Passes on what is better than what was told before, whoever says it."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._value: int | None = None
        self._bound = 0

    def __call__(self, value: int | None, bound: int) -> None:
        known = self._value, self._bound
        if value is not None and (self._value is None or value < self._value):
            self._value = value
        self._bound = max(self._bound, bound)
        if self._progress is not None and known != (self._value, self._bound):
            self._progress(self._value, self._bound)
