"""Operations that take no time, made to take a little, so that starts alone tell the order.

Let N be the number of operations. Every time is multiplied by N + 1, and where it was 0 it becomes 1. Whatever the
order, the step is a longest way over at most N operations, so that a step of T takes between (N + 1) T and
(N + 1) T + N: rounding down gives T back, and of a bound L on the stretched problem ⌈(L − N) / (N + 1)⌉ holds here,
which is the optimum if L is.
"""

from dataclasses import dataclass, replace

from pipeplan_formulations.schedule.problem import PipelineSchedule


@dataclass(frozen=True)
class Stretched:
    """A problem whose operations all take time.

    Attributes
    ----------
    problem : PipelineSchedule
        The same orders are feasible as in the original.
    factor : int
        N + 1, or 1 if nothing had to be done.
    """

    problem: PipelineSchedule
    factor: int

    def bound(self, stretched: int) -> int:
        """The bound on the original that a bound on the stretched problem gives."""
        return -(-(stretched - self.factor + 1) // self.factor)


def stretched(problem: PipelineSchedule) -> Stretched:
    """The problem itself, where all its operations take time already."""
    times = [problem.time[kind][s] for s in range(problem.stages) for kind in problem.kinds(s)]
    if all(times):
        return Stretched(problem, 1)
    factor = len(times) * problem.micro_batches + 1

    def longer(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(value * factor or 1 for value in values)

    def as_long(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(value * factor for value in values)

    weight = tuple(w if split else 0 for w, split in zip(longer(problem.weight), problem.split, strict=True))
    other = replace(
        problem,
        forward=longer(problem.forward),
        backward=longer(problem.backward),
        weight=weight,
        lag=as_long(problem.lag),
        lag_back=as_long(problem.lag_back),
        ending=as_long(problem.ending),
    )
    return Stretched(other, factor)
