"""A fixed pipeline as an instance of the pipeline scheduling problem.

::

    pipeline         instance                                       what the simulator has besides
    stages           times, bytes and ends of one row's stages      updates of several stages on one device take turns,
                                                                    reductions wait for those of tied stages
    wires            those that a tensor of the row may wait for    tensors of other rows on them; those without bytes
                     (`pipeplan.search.scheduling.routes`)                        wait, too
    two lanes        two lanes, times as they are on two

So the instance is a relaxation: what a schedule does in the simulator is a solution that takes no longer. Where nothing
of the right column is there it says as much, if wires serve their tensors in the same order: first come, first served,
as the simulator does and `evaluate` unless it is told another order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.core.schedule import Kind
from pipeplan.search.scheduling.routes import ways_of
from pipeplan.search.scheduling.rows import Rows, hardest, rows_of, share
from pipeplan.simulate.program import two_lane_duration
from pipeplan_formulations.schedule import PipelineSchedule

NAMES: Mapping[Overlap, Literal["copy", "stream", "none"]] = {
    Overlap.COPY: "copy",
    Overlap.STREAM: "stream",
    Overlap.NONE: "none",
}
"""What the formulation calls them."""


def schedule_problem(
    pipeline: Pipeline,
    micro_batches: int,
    split: bool | Sequence[bool] = True,
    *,
    safe: bool = False,
    two_lanes: bool = False,
) -> PipelineSchedule:
    """The orders of one row of a pipeline (`pipeplan.search.scheduling.rows`): that of the most micro-batches.

    No schedule of the pipeline that updates all stages, has so many lanes and splits the backwards of the stages in
    ``split``, and of no others, takes less than the instance's best for its orders, and none needs less memory.

    Parameters
    ----------
    pipeline : Pipeline
        Its stages all have the same number of replicas; several stages on a device are welcome.
    micro_batches : int
        Of the whole step.
    split : bool or sequence of bool
        Whose backwards are split into I and W.
    safe : bool
        Stages of one device may have workspaces of different sizes. The instance counts the least of them, so that all
        orders that fit the pipeline fit the instance; with ``safe`` the largest, so that it is the other way round.
    two_lanes : bool
        Whether devices run forwards beside everything else. Memory is then as the validator counts it, with a
        workspace for each lane.

    Raises
    ------
    InputError
        If there is no micro-batch, ``split`` is not one a stage or names a stage whose I and W have no times, the
        replicas are not rows that are alike, or devices with two lanes would wait while they send.
    """
    timed = in_two_lanes(pipeline) if two_lanes else pipeline
    return problem_of(timed, micro_batches, split, safe=safe, two_lanes=two_lanes)


def problem_of(
    pipeline: Pipeline, micro_batches: int, split: bool | Sequence[bool], *, safe: bool, two_lanes: bool
) -> PipelineSchedule:
    """`schedule_problem` of a pipeline whose times are those on so many lanes."""
    if micro_batches < 1:
        raise InputError(f"a step needs at least one micro-batch, not {micro_batches}")
    if two_lanes and pipeline.overlap is Overlap.NONE:
        raise InputError("devices that wait while they send have one lane; ask for two where overlap is not none")
    stages, rows = pipeline.stages, rows_of(pipeline)
    row = hardest(rows, pipeline, micro_batches)
    splits = _splits(stages, split)
    own = share(rows, row, micro_batches)
    returns = [Kind.INPUT_GRADIENT if cut else Kind.BACKWARD for cut in splits]
    forward = [stage.duration(Kind.FORWARD) for stage in stages]
    backward = [stage.duration(kind) for stage, kind in zip(stages, returns, strict=True)]
    weight = [stage.duration(Kind.WEIGHT_GRADIENT) if cut else 0 for stage, cut in zip(stages, splits, strict=True)]
    freed = [_freed(stage, cut) for stage, cut in zip(stages, splits, strict=True)]
    down, up = (
        [ways[row] if rows.crosses(s) else Transfer() for s, ways in enumerate(every)]
        for every in (pipeline.transfers, pipeline.returns)
    )
    onward, back = ways_of(pipeline.overlap, down, up, forward, backward)
    if pipeline.overlap is Overlap.NONE:
        forward = [time + way.occupancy for time, way in zip(forward, (*down, Transfer()), strict=True)]
        backward = [time + way.occupancy for time, way in zip(backward, (Transfer(), *up), strict=True)]
    base, limit = _memory(pipeline, rows, row, own, safe, two_lanes)
    return PipelineSchedule(
        device=rows.column,
        micro_batches=own,
        forward=tuple(forward),
        backward=tuple(backward),
        weight=tuple(weight),
        split=splits,
        lag=onward.lag,
        lag_back=back.lag,
        ending=tuple(stage.update + (stage.reduce if sums(pipeline, s) else 0) for s, stage in enumerate(stages)),
        taken=tuple(stage.held for stage in stages),
        freed=tuple(freed),
        freed_by_weight=tuple(stage.held - now for stage, now in zip(stages, freed, strict=True)),
        base=base,
        limit=limit,
        two_lanes=(True,) * len(rows.columns) if two_lanes else (),
        overlap=NAMES[pipeline.overlap] if onward.wires or back.wires else "copy",
        occupancy=onward.occupancy,
        occupancy_back=back.occupancy,
        wires=onward.wires,
        wires_back=back.wires,
    )


def may_have_lanes(pipeline: Pipeline) -> bool:
    """Whether schedules of two lanes, as FBP's, are searched beside those of one: where tensors stream."""
    return pipeline.overlap is Overlap.STREAM


def in_two_lanes(pipeline: Pipeline) -> Pipeline:
    """The pipeline whose actions on one lane would take as long as its own do on two."""
    stages = (stage.with_durations(partial(two_lane_duration, stage)) for stage in pipeline.stages)
    return replace(pipeline, stages=tuple(stages))


def splittable(stage: Stage) -> bool:
    """Whether the times of its I and W are known."""
    return stage.total(Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT) > 0 or stage.total(Kind.BACKWARD) == 0


def sums(pipeline: Pipeline, stage: int) -> bool:
    """Whether a stage reduces gradients: with its replicas, or with stages that hold the same weights."""
    return pipeline.replicas[stage] > 1 or any(stage in group for group in pipeline.tied)


def _splits(stages: Sequence[Stage], split: bool | Sequence[bool]) -> tuple[bool, ...]:
    splits = (split,) * len(stages) if isinstance(split, bool) else tuple(split)
    if len(splits) != len(stages):
        raise InputError(f"split has {len(splits)} entries for {len(stages)} stages; give one a stage, or one for all")
    for s, (stage, cut) in enumerate(zip(stages, splits, strict=True)):
        if cut and not splittable(stage):
            raise InputError(
                f"the backward of stage {s} takes {stage.total(Kind.BACKWARD)} ns and its two parts none, so they are "
                "not known; give the stage input_gradient and weight_gradient, or do not split it"
            )
    return splits


def _freed(stage: Stage, cut: bool) -> int:
    """Bytes that go with I, or with the joined B."""
    if not cut:
        return stage.held
    return 0 if stage.held_after_input_gradient is None else stage.held - stage.held_after_input_gradient


def _memory(
    pipeline: Pipeline, rows: Rows, row: int, micro_batches: int, safe: bool, two_lanes: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Base and limit of each column; no limit above what all micro-batches take together, which is none."""
    base, limit = [], []
    for column, devices in enumerate(rows.columns):
        own = [pipeline.stages[s] for s in rows.hosted(column)]
        workspace = (max if safe else min)(stage.workspace for stage in own)
        workspace += max(stage.forward_lane_workspace for stage in own) if two_lanes else 0
        base.append(pipeline.runtime[devices[row]] + sum(stage.resident for stage in own) + workspace)
        all_of_it = base[-1] + micro_batches * sum(stage.held for stage in own)
        limit.append(min(pipeline.limits[devices[row]], all_of_it))
    return tuple(base), tuple(limit)
