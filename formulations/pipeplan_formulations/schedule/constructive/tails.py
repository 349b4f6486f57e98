"""How long the step must go on after an action has begun: the critical path to the end.

Besides the arcs of the pipeline there are those of memory: with at most ``c`` micro-batches resident on a device, the F
of micro-batch n cannot start before I_{n − c} has ended, and where what it gives back is not enough, W_{n − c}.
"""

from pipeplan_formulations.schedule.constructive.rule import Priorities
from pipeplan_formulations.schedule.instance import PipelineSchedule


def resident(problem: PipelineSchedule) -> list[int]:
    """Most micro-batches that fit on the device of each stage, if every stage there holds as many of them."""
    many = problem.micro_batches
    fits = []
    for most, stages in zip(problem.room, problem.hosted, strict=True):
        full = sum(problem.taken[s] for s in stages)
        fits.append(max(1, min(many, most // full)) if full else many)
    return [fits[device] for device in problem.device]


def tails(problem: PipelineSchedule, resident: list[int], weights_first: bool) -> Priorities:
    """From the start of every action to the end of the step, with as many micro-batches ``resident`` per stage.

    Parameters
    ----------
    weights_first : bool
        Whether an F that waits for memory waits for the W too; without, only for the I.
    """
    stages, many = problem.stages, problem.micro_batches
    zero = [[0.0] * many for _ in range(stages)]
    forward, backward, weight = ([list(row) for row in zero] for _ in range(3))
    for m in reversed(range(many)):
        for s in range(stages):
            later = m + resident[s]
            waits = forward[s][later] if later < many else 0.0
            after = float(problem.ending[s])
            if problem.split[s]:
                tail = waits if weights_first else 0.0
                weight[s][m] = problem.weight[s] + max(after, tail, weight[s][m + 1] if m + 1 < many else 0.0)
                after = weight[s][m]
            on = problem.away_back[s - 1] + backward[s - 1][m] if s else 0.0
            next_one = backward[s][m + 1] if m + 1 < many else 0.0
            backward[s][m] = problem.backward[s] + max(after, waits, on, next_one)
        for s in reversed(range(stages)):
            on = problem.away[s] + forward[s + 1][m] if s + 1 < stages else 0.0
            next_one = forward[s][m + 1] if m + 1 < many else 0.0
            forward[s][m] = problem.forward[s] + max(backward[s][m], on, next_one)
    return forward, backward, weight
