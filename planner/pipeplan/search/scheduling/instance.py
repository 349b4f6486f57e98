"""A fixed pipeline as an instance of the pipeline scheduling problem.

The instance holds one data-parallel replica of the pipeline. It is a relaxation of the simulator::

    pipeline          in the instance                         only in the simulator
    stages            times, bytes and endings of one         updates of several stages on one device run one after
                      replica's stages                        the other; reductions wait for those of tied stages
    gathers           that of the first stage, as if behind   those of other stages
                      its ending
    link resources    those that a tensor of the replica may  tensors of other replicas on them; tensors without bytes
                      wait for (`search.scheduling.routes`)   wait, too
    two lanes         two lanes, with the times of two lanes

So every simulated schedule is a solution of the instance that takes no longer. Where nothing of the right column
applies, both take equally long, if link resources serve their tensors in the same order. The simulator serves them
first come, first served, and so does `evaluate` unless another order is given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.core.schedule import Kind
from pipeplan.search.scheduling.replica_pipelines import (
    ReplicaPipelines,
    micro_batches_of,
    replica_pipelines,
    tightest_pipeline,
)
from pipeplan.search.scheduling.routes import routes_of
from pipeplan.simulate.program import two_lane_duration
from pipeplan_formulations.schedule import PipelineSchedule

NAMES: Mapping[Overlap, Literal["copy", "stream", "none"]] = {
    Overlap.COPY: "copy",
    Overlap.STREAM: "stream",
    Overlap.NONE: "none",
}
"""The formulation's names of the overlaps."""


def schedule_problem(
    pipeline: Pipeline,
    micro_batches: int,
    split: bool | Sequence[bool] = True,
    *,
    safe: bool = False,
    two_lanes: bool = False,
) -> PipelineSchedule:
    """The scheduling problem of one replica of a pipeline, the one with the most micro-batches (`replica_pipelines`).

    It covers the schedules that update all stages, have the given lanes, and split the backwards of the stages in
    ``split`` and of no others. None of them takes less time than the instance states for its orders, or less memory.

    Parameters
    ----------
    pipeline : Pipeline
        All stages have the same number of replicas. A device may run several stages.
    micro_batches : int
        Number of micro-batches of the whole step, over all replicas.
    split : bool or sequence of bool
        Stages whose backwards are split into I and W.
    safe : bool
        Stages of one device may have workspaces of different sizes. The instance counts the least of them, so that all
        orders that fit the pipeline fit the instance. With ``safe`` it counts the largest, so that all orders that fit
        the instance fit the pipeline.
    two_lanes : bool
        Whether devices run forwards beside all other actions. Memory then has a workspace per lane, as in the
        validator.

    Raises
    ------
    InputError
        If there is no micro-batch, ``split`` does not have one entry per stage or names a stage whose I and W have no
        times, the replicas are not alike, or devices with two lanes would wait while they send.
    """
    timed = in_two_lanes(pipeline) if two_lanes else pipeline
    return problem_of(timed, micro_batches, split, safe=safe, two_lanes=two_lanes)


def problem_of(
    pipeline: Pipeline, micro_batches: int, split: bool | Sequence[bool], *, safe: bool, two_lanes: bool
) -> PipelineSchedule:
    """`schedule_problem` of a pipeline whose times already are those on one lane, or on two."""
    if micro_batches < 1:
        raise InputError(f"a step needs at least one micro-batch, not {micro_batches}")
    if two_lanes and pipeline.overlap is Overlap.NONE:
        raise InputError(
            "devices that wait while they send have one lane; use two_lanes only where overlap is not none"
        )
    stages, pipelines = pipeline.stages, replica_pipelines(pipeline)
    replica = tightest_pipeline(pipelines, pipeline, micro_batches)
    splits = _splits(stages, split)
    own = micro_batches_of(pipelines, replica, micro_batches)
    returns = [Kind.INPUT_GRADIENT if cut else Kind.BACKWARD for cut in splits]
    forward = [stage.duration(Kind.FORWARD) for stage in stages]
    backward = [stage.duration(kind) for stage, kind in zip(stages, returns, strict=True)]
    weight = [stage.duration(Kind.WEIGHT_GRADIENT) if cut else 0 for stage, cut in zip(stages, splits, strict=True)]
    freed = [_freed(stage, cut) for stage, cut in zip(stages, splits, strict=True)]
    # One transfer per boundary and direction; none between stages of one device.
    down, up = (
        [transfers[replica] if pipelines.crosses(s) else Transfer() for s, transfers in enumerate(every)]
        for every in (pipeline.transfers, pipeline.returns)
    )
    onward, back = routes_of(pipeline.overlap, down, up, forward, backward)
    # Where devices wait while they send, an action takes its own time and the time of the tensor that it sends.
    if pipeline.overlap is Overlap.NONE:
        forward = [time + sent.occupancy for time, sent in zip(forward, (*down, Transfer()), strict=True)]
        backward = [time + sent.occupancy for time, sent in zip(backward, (Transfer(), *up), strict=True)]
    base, limit = _memory(pipeline, pipelines, replica, own, safe, two_lanes)
    return PipelineSchedule(
        device=pipelines.group_of,
        micro_batches=own,
        forward=tuple(forward),
        backward=tuple(backward),
        weight=tuple(weight),
        split=splits,
        lag=onward.lag,
        lag_back=back.lag,
        ending=(pipeline.begins[0] + pipeline.ending(0), *map(pipeline.ending, range(1, len(stages)))),
        taken=tuple(stage.held for stage in stages),
        freed=tuple(freed),
        freed_by_weight=tuple(stage.held - now for stage, now in zip(stages, freed, strict=True)),
        base=base,
        limit=limit,
        two_lanes=(True,) * len(pipelines.groups) if two_lanes else (),
        overlap=NAMES[pipeline.overlap] if onward.resources or back.resources else "copy",
        occupancy=onward.occupancy,
        occupancy_back=back.occupancy,
        resources=onward.resources,
        resources_back=back.resources,
    )


def may_have_lanes(pipeline: Pipeline) -> bool:
    """Return True if schedules of two lanes, as FBP's, are searched beside those of one: where tensors stream."""
    return pipeline.overlap is Overlap.STREAM


def in_two_lanes(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with the durations that its actions have on two lanes."""
    stages = (stage.with_durations(partial(two_lane_duration, stage)) for stage in pipeline.stages)
    return replace(pipeline, stages=tuple(stages))


def splittable(stage: Stage) -> bool:
    """Return True if the times of a stage's I and W are known."""
    return stage.total(Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT) > 0 or stage.total(Kind.BACKWARD) == 0


def _splits(stages: Sequence[Stage], split: bool | Sequence[bool]) -> tuple[bool, ...]:
    splits = (split,) * len(stages) if isinstance(split, bool) else tuple(split)
    if len(splits) != len(stages):
        raise InputError(
            f"split has {len(splits)} entries for {len(stages)} stages; give one per stage, or one for all"
        )
    for s, (stage, cut) in enumerate(zip(stages, splits, strict=True)):
        if cut and not splittable(stage):
            raise InputError(
                f"the backward of stage {s} takes {stage.total(Kind.BACKWARD)} ns and its two parts none, so they are "
                "not known; give the stage input_gradient and weight_gradient, or do not split it"
            )
    return splits


def _freed(stage: Stage, cut: bool) -> int:
    """Bytes freed by I, or by the joined B."""
    if not cut:
        return stage.held
    return 0 if stage.held_after_input_gradient is None else stage.held - stage.held_after_input_gradient


def _memory(
    pipeline: Pipeline, pipelines: ReplicaPipelines, replica: int, micro_batches: int, safe: bool, two_lanes: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Base and limit in bytes of each data-parallel group.

    A limit above the bytes of all micro-batches together never binds, so it is cut down to these.
    """
    base, limit = [], []
    for group, devices in enumerate(pipelines.groups):
        own = [pipeline.stages[s] for s in pipelines.hosted(group)]
        workspace = (max if safe else min)(stage.workspace for stage in own)
        workspace += max(stage.forward_lane_workspace for stage in own) if two_lanes else 0
        base.append(pipeline.runtime[devices[replica]] + sum(stage.resident for stage in own) + workspace)
        all_of_it = base[-1] + micro_batches * sum(stage.held for stage in own)
        limit.append(min(pipeline.limits[devices[replica]], all_of_it))
    return tuple(base), tuple(limit)
