"""What no schedule of a pipeline undercuts, whatever its order, its backwards split or joined, its lanes one or two.

A micro-batch's backward takes B where it is joined, I and W where it is split. Measured times need not add up, so the
instance whose every schedule is no slower than one of either kind has

    I' = min(I, B)        W' = min(W, B − I')        hence I' ≤ I, W' ≤ W, I' + W' ≤ B:

a joined backward is I' and W' in a row, sends no earlier than I' ends and frees no earlier either.

On two lanes an action takes as long as F and B together, and where tensors stream that much of their way is hidden. The
instance hides as much for one lane.
"""

from collections.abc import Sequence
from dataclasses import replace

from pipeplan.cluster import Overlap
from pipeplan.found.instance import schedule_problem, splittable
from pipeplan.pipeline import Pipeline, Stage, Transfer
from pipeplan_formulations.schedule import PipelineSchedule, lower_bound


def floor_problem(pipeline: Pipeline, micro_batches: int, split: bool | Sequence[bool] = True) -> PipelineSchedule:
    """The instance whose optimum is a bound over all schedules that may split these stages and need not.

    Parameters
    ----------
    split : bool or sequence of bool
        The stages whose backwards may be split; those whose I and W have no times stay joined.

    Raises
    ------
    InputError
        As `schedule_problem`.
    """
    stages = pipeline.stages
    wanted = (split,) * len(stages) if isinstance(split, bool) else tuple(split)
    cut = [may and splittable(stage) for may, stage in zip(wanted, stages, strict=False)]
    least = replace(
        pipeline, stages=tuple(_least(stage) if may else stage for may, stage in zip(cut, stages, strict=False))
    )
    if pipeline.overlap is Overlap.STREAM:
        least = replace(
            least,
            transfers=tuple(
                tuple(_hidden(way, stages[s]) for way in ways) for s, ways in enumerate(pipeline.transfers)
            ),
            returns=tuple(
                tuple(_hidden(way, stages[s + 1]) for way in ways) for s, ways in enumerate(pipeline.returns)
            ),
        )
    return schedule_problem(least, micro_batches, [*cut, *wanted[len(cut) :]])


def floor(problem: PipelineSchedule) -> int:
    """`lower_bound`, and for each device all that it must run, updates included, one after the other.

    A formulation's endings occupy no device. Those of several stages on one do.
    """
    bound = lower_bound(problem)
    if not problem.possible:
        return bound
    heads = _heads(problem)
    for device, stages in enumerate(problem.hosted):
        if stages:
            ends = sum(problem.ending[s] for s in stages)
            bound = max(bound, min(heads[s] for s in stages) + problem.work[device] + ends)
    return bound


def _heads(problem: PipelineSchedule) -> list[int]:
    """When the first forward of each stage may start."""
    heads = [0]
    for time, lag in zip(problem.forward, problem.lag, strict=False):
        heads.append(heads[-1] + time + lag)
    return heads


def _least(stage: Stage) -> Stage:
    inputs = min(stage.input_gradient, stage.backward)
    return replace(stage, input_gradient=inputs, weight_gradient=min(stage.weight_gradient, stage.backward - inputs))


def _hidden(way: Transfer, sender: Stage) -> Transfer:
    """Nothing but a latency: what is left of a streamed tensor's way after F + B."""
    return replace(way, occupancy=0, latency=way.latency + max(0, way.occupancy - sender.forward - sender.backward))
