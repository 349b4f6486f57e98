"""Lower bounds on the makespan over all schedules of a pipeline, their backwards split or joined.

A micro-batch's backward takes B where it is joined, I and W where it is split. Measured times need not add up. The
relaxed instance, which bounds schedules of both kinds, has

    I' = min(I, B)        W' = min(W, B − I')        hence I' ≤ I, W' ≤ W, I' + W' ≤ B:

a joined backward is I' followed by W'. It sends no earlier than I' ends, and frees memory no earlier either.

That fails where devices wait while they send. A joined B sends after all of it is done. If its I' waited as long for a
link resource, W' would come later. So there the gradients of stages that may be split occupy no link resources.

Schedules of two lanes have an instance of their own, with the times of two lanes. The bound over all schedules is the
lesser of both.
"""

from collections.abc import Sequence
from dataclasses import replace

from pipeplan.core.pipeline import Pipeline, Stage
from pipeplan.core.schedule import Kind
from pipeplan.search.scheduling.instance import in_two_lanes, problem_of, splittable
from pipeplan_formulations.schedule import PipelineSchedule, lower_bound
from pipeplan_formulations.schedule.precedence import heads


def relaxed_problem(
    pipeline: Pipeline, micro_batches: int, split: bool | Sequence[bool] = True, *, two_lanes: bool = False
) -> PipelineSchedule:
    """The instance whose optimum bounds all schedules that split the backwards of none, some or all of these stages.

    Parameters
    ----------
    split : bool or sequence of bool
        The stages whose backwards may be split; those whose I and W have no times stay joined.
    two_lanes : bool
        Whether the bound is over schedules of two lanes; otherwise over those of one.

    Raises
    ------
    InputError
        As `schedule_problem`.
    """
    pipeline = in_two_lanes(pipeline) if two_lanes else pipeline
    stages = pipeline.stages
    wanted = (split,) * len(stages) if isinstance(split, bool) else tuple(split)
    cut = [may and splittable(stage) for may, stage in zip(wanted, stages, strict=False)]
    least = replace(
        pipeline, stages=tuple(_least(stage) if may else stage for may, stage in zip(cut, stages, strict=False))
    )
    problem = problem_of(least, micro_batches, [*cut, *wanted[len(cut) :]], safe=False, two_lanes=two_lanes)
    return _sent_early(problem) if problem.overlap == "none" else problem


def schedule_lower_bound(problem: PipelineSchedule) -> int:
    """Nanoseconds: the greater of `lower_bound` and, over devices, all work of a device with its updates in sequence.

    The formulation's endings occupy no device. In the simulator, those of several stages on one device do.
    """
    bound = lower_bound(problem)
    if not problem.possible:
        return bound
    first = heads(problem)
    for device, stages in enumerate(problem.hosted):
        rows = [row for row in problem.rows(device) if row[0] != "F" or not problem.has_lanes(device)]
        if rows:
            work = problem.micro_batches * sum(problem.time[kind][s] for kind, s in rows)
            ends = sum(problem.ending[s] for s in stages)
            bound = max(bound, min(first[kind][s] for kind, s in rows) + work + ends)
    return bound


def _least(stage: Stage) -> Stage:
    """The stage with I' and W' of the relaxation, which together take no longer than B."""
    backward = stage.duration(Kind.BACKWARD)
    inputs = min(stage.duration(Kind.INPUT_GRADIENT), backward)
    weights = min(stage.duration(Kind.WEIGHT_GRADIENT), backward - inputs)
    return replace(stage, input_gradient=inputs, weight_gradient=weights)


def _sent_early(problem: PipelineSchedule) -> PipelineSchedule:
    """The problem in which gradients that split stages send back occupy no link resources."""
    free = problem.split[1:]
    times = tuple(0 if own else time for own, time in zip(free, problem.occupancy_back, strict=False))
    resources = tuple(() if own else used for own, used in zip(free, problem.resources_back, strict=False))
    return replace(problem, occupancy_back=times, resources_back=resources)
