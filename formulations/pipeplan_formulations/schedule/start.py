"""Preparation for CP-SAT: times scaled to be positive, and the best orders known without a solver.

Solvers get small times, all above 0, so that starts alone determine the order (`scaled`). If all operations take time,
the times are divided by their greatest common divisor. Otherwise let N be the number of operations: every time is
multiplied by N + 1, and operations of time 0 get 1. For any order the step is a longest path over at most N operations,
and over lags and transfers, whose times are multiples of N + 1. So a step of T takes between (N + 1) T and
(N + 1) T + N, and rounding down gives T back. A lower bound L on the scaled problem gives ⌈(L − N) / (N + 1)⌉ on the
original, which is the optimum if L is.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.report import Limits, Progress
from pipeplan_formulations.schedule.constructive import constructive
from pipeplan_formulations.schedule.instance import Op, Orders, PipelineSchedule
from pipeplan_formulations.schedule.objective import evaluate, feasible


def serial(problem: PipelineSchedule) -> Orders:
    """Orders that run one micro-batch after the other, each W as soon as possible.

    They are feasible whenever the problem is `possible`, and need the least memory of all orders.
    """
    last = problem.stages - 1

    def place(op: Op) -> tuple[int, int, int]:
        if op.kind == "F":
            return op.micro_batch, op.stage, 0
        return op.micro_batch, last + 1 + last - op.stage, int(op.kind == "W")

    return tuple(tuple(sorted(problem.operations(d), key=place)) for d in range(problem.devices))


@dataclass(frozen=True)
class ScaledProblem:
    """Scaled problem whose operations all take time.

    Attributes
    ----------
    problem : PipelineSchedule
        It has the same feasible orders as the original.
    factor : int
        N + 1, or 1 if all operations take time already.
    unit : int
        Divisor of all times.
    """

    problem: PipelineSchedule
    factor: int
    unit: int

    def bound(self, scaled: int) -> int:
        """Lower bound on the original from a lower bound on the scaled problem."""
        return -(-(scaled * self.unit - self.factor + 1) // self.factor)


def scaled(problem: PipelineSchedule) -> ScaledProblem:
    """Scale all times so that every operation takes time."""
    times = [problem.time[kind][s] for s in range(problem.stages) for kind in problem.kinds(s)]
    if all(times):
        ways = (problem.lag, problem.lag_back, problem.occupancy, problem.occupancy_back)
        unit = math.gcd(*times, *chain(*ways), *problem.ending)
        return ScaledProblem(_with(problem, lambda time: time // unit), 1, unit)
    factor = len(times) * problem.micro_batches + 1
    other = _with(problem, lambda time: time * factor)
    weight = [w or int(split) for w, split in zip(other.weight, other.split, strict=True)]
    other = replace(
        other,
        forward=tuple(time or 1 for time in other.forward),
        backward=tuple(time or 1 for time in other.backward),
        weight=tuple(weight),
    )
    return ScaledProblem(other, factor, 1)


def _with(problem: PipelineSchedule, change: Callable[[int], int]) -> PipelineSchedule:
    """Problem with ``change`` applied to every time."""
    return replace(
        problem,
        forward=tuple(map(change, problem.forward)),
        backward=tuple(map(change, problem.backward)),
        weight=tuple(map(change, problem.weight)),
        lag=tuple(map(change, problem.lag)),
        lag_back=tuple(map(change, problem.lag_back)),
        ending=tuple(map(change, problem.ending)),
        occupancy=tuple(map(change, problem.occupancy)),
        occupancy_back=tuple(map(change, problem.occupancy_back)),
    )


SHARE = 0.1
"""Share of the time limit for list scheduling."""


def open_bracket(problem: PipelineSchedule, limits: Limits, on_progress: Progress | None) -> Bracket[Orders]:
    """Create the bracket of a schedule problem without incumbent or bound."""
    bracket = Bracket(partial(evaluate, problem), limits, on_progress)
    bracket.impossible = not problem.possible
    return bracket


def start(problem: PipelineSchedule, bracket: Bracket[Orders], hint: Orders | None, seconds: float) -> None:
    """Offer the serial orders, the hint, and the best list schedule found within ``seconds``."""
    bracket.offer(serial(problem))
    if hint is not None and feasible(problem, hint):
        bracket.offer(hint)
    if not bracket.closed:
        gap = bracket.limits.gap
        found = constructive(problem, seconds, int(bracket.low / (1 - gap)) if gap else bracket.low)
        if found is not None:
            bracket.offer(found[1])
