"""Priority rules: what goes first."""

from pipeplan_formulations.schedule.constructive.rule import Priorities
from pipeplan_formulations.schedule.constructive.tails import tails
from pipeplan_formulations.schedule.instance import PipelineSchedule

_LAST = 1e15  # behind everything else; priorities below are less than 2^53 apart


def by_kind(problem: PipelineSchedule, order: str) -> Priorities:
    """Kinds in the given order, as "IFW"; among equals the oldest micro-batch, and of it what is nearer to its end."""
    stages, many = problem.stages, problem.micro_batches
    step = 2.0 * stages * many

    def of(kind: str) -> list[list[float]]:
        rank = order.index(kind) * step
        near = [stages - s if kind == "F" else s for s in range(stages)]
        return [[rank + 2 * stages * m + near[s] for m in range(many)] for s in range(stages)]

    return of("F"), of("I"), of("W")


def by_micro_batch(problem: PipelineSchedule, fill: bool) -> Priorities:
    """The oldest micro-batch first, of it the I, then W, then F; with ``fill`` every W behind all else."""
    stages, many = problem.stages, problem.micro_batches
    step = 4.0 * stages
    forward = [[step * m + 3 * stages - s for m in range(many)] for s in range(stages)]
    backward = [[step * m + s for m in range(many)] for s in range(stages)]
    weight = [[step * m + stages + s + _LAST * fill for m in range(many)] for s in range(stages)]
    return forward, backward, weight


def by_tail(problem: PipelineSchedule, resident: list[int], weights_first: bool, fill: bool) -> Priorities:
    """The longest critical path to the end first; with ``fill`` every W behind all else."""
    forward, backward, weight = tails(problem, resident, weights_first)
    return _negative(forward, 0.0), _negative(backward, 0.0), _negative(weight, _LAST * fill)


def _negative(rows: list[list[float]], more: float) -> list[list[float]]:
    return [[more - value for value in row] for row in rows]
