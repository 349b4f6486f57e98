"""Times as solvers want them: small, and above 0, so that starts alone tell the order.

Where all operations take time, the times are divided by the greatest that divides them all. Where some do not, let N
be the number of operations: every time is multiplied by N + 1, and where it was 0 it becomes 1. Whatever the order, the
step is a longest way over at most N operations, and over lags and transfers, whose times are multiples again. So a step
of T takes between (N + 1) T and (N + 1) T + N: rounding down gives T back, and of a bound L on the stretched problem
⌈(L − N) / (N + 1)⌉ holds here, which is the optimum if L is.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain

from pipeplan_formulations.schedule.instance import PipelineSchedule


@dataclass(frozen=True)
class Stretched:
    """A problem whose operations all take time.

    Attributes
    ----------
    problem : PipelineSchedule
        The same orders are feasible as in the original.
    factor : int
        N + 1, or 1 if all operations take time already.
    unit : int
        What times were divided by.
    """

    problem: PipelineSchedule
    factor: int
    unit: int

    def bound(self, stretched: int) -> int:
        """The bound on the original that a bound on the stretched problem gives."""
        return -(-(stretched * self.unit - self.factor + 1) // self.factor)


def stretched(problem: PipelineSchedule) -> Stretched:
    """The problem with other times."""
    times = [problem.time[kind][s] for s in range(problem.stages) for kind in problem.kinds(s)]
    if all(times):
        ways = (problem.lag, problem.lag_back, problem.occupancy, problem.occupancy_back)
        unit = math.gcd(*times, *chain(*ways), *problem.ending)
        return Stretched(_with(problem, lambda time: time // unit), 1, unit)
    factor = len(times) * problem.micro_batches + 1
    other = _with(problem, lambda time: time * factor)
    weight = [w or int(split) for w, split in zip(other.weight, other.split, strict=True)]
    other = replace(
        other,
        forward=tuple(time or 1 for time in other.forward),
        backward=tuple(time or 1 for time in other.backward),
        weight=tuple(weight),
    )
    return Stretched(other, factor, 1)


def _with(problem: PipelineSchedule, change: Callable[[int], int]) -> PipelineSchedule:
    """Every time changed."""
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
