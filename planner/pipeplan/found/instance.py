"""A fixed pipeline as an instance of the pipeline scheduling problem.

How long a tensor of occupancy o and latency l is away after an action of t (`pipeplan.simulate` draws it):

::

    overlap     the action takes     lag after its end
    copy        t                    o + l
    stream      t                    max(0, o − t) + l      it leaves while it is being made
    none        t + o                l                      the device waits until it has left

That is what the simulator does with wires that are free. Where tensors must wait for one that several share, it takes
longer; so it does where reductions wait for those of tied stages, and where a device has updates of several stages to
run. So the instance is a relaxation: of the same orders it says no more than the simulator, and mostly as much.
"""

from collections.abc import Sequence

from pipeplan.cluster import Overlap
from pipeplan.errors import InputError
from pipeplan.found.rows import Rows, hardest, rows_of, share
from pipeplan.pipeline import Pipeline, Stage, Transfer
from pipeplan_formulations.schedule import PipelineSchedule


def schedule_problem(
    pipeline: Pipeline, micro_batches: int, split: bool | Sequence[bool] = True, *, safe: bool = False
) -> PipelineSchedule:
    """The orders of one row of a pipeline (`pipeplan.found.rows`): that of the most micro-batches.

    No schedule of the pipeline that updates all stages, has one lane a device and splits the backwards of the stages in
    ``split``, and of no others, takes less than the instance says of its orders, and none needs less memory.

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

    Raises
    ------
    InputError
        If there is no micro-batch, ``split`` is not one a stage or names a stage whose I and W have no times, or the
        replicas are not rows that are alike.
    """
    if micro_batches < 1:
        raise InputError(f"a step needs at least one micro-batch, not {micro_batches}")
    stages, rows = pipeline.stages, rows_of(pipeline)
    row = hardest(rows, pipeline, micro_batches)
    splits = _splits(stages, split)
    own = share(rows, row, micro_batches)
    forward = [stage.forward for stage in stages]
    backward = [stage.input_gradient if cut else stage.backward for stage, cut in zip(stages, splits, strict=True)]
    freed = [_freed(stage, cut) for stage, cut in zip(stages, splits, strict=True)]
    lags = [_lag(pipeline, rows, s, ways[row], forward, s) for s, ways in enumerate(pipeline.transfers)]
    lags_back = [_lag(pipeline, rows, s, ways[row], backward, s + 1) for s, ways in enumerate(pipeline.returns)]
    base, limit = _memory(pipeline, rows, row, own, safe)
    return PipelineSchedule(
        device=rows.column,
        micro_batches=own,
        forward=tuple(forward),
        backward=tuple(backward),
        weight=tuple(stage.weight_gradient if cut else 0 for stage, cut in zip(stages, splits, strict=True)),
        split=splits,
        lag=tuple(lags),
        lag_back=tuple(lags_back),
        ending=tuple(stage.update + (stage.reduce if sums(pipeline, s) else 0) for s, stage in enumerate(stages)),
        taken=tuple(stage.held for stage in stages),
        freed=tuple(freed),
        freed_by_weight=tuple(stage.held - now for stage, now in zip(stages, freed, strict=True)),
        base=base,
        limit=limit,
    )


def splittable(stage: Stage) -> bool:
    """Whether the times of its I and W are known."""
    return stage.input_gradient + stage.weight_gradient > 0 or stage.backward == 0


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
                f"the backward of stage {s} takes {stage.backward} ns and its two parts none, so they are not known; "
                "give the stage input_gradient and weight_gradient, or do not split it"
            )
    return splits


def _freed(stage: Stage, cut: bool) -> int:
    """Bytes that go with I, or with the joined B."""
    if not cut:
        return stage.held
    return 0 if stage.held_after_input_gradient is None else stage.held - stage.held_after_input_gradient


def _lag(pipeline: Pipeline, rows: Rows, boundary: int, way: Transfer, times: list[int], sender: int) -> int:
    """Of a tensor over a boundary; where its device waits meanwhile, that is added to the sender's time."""
    if not rows.crosses(boundary):
        return 0
    if pipeline.overlap is Overlap.STREAM:
        return max(0, way.occupancy - times[sender]) + way.latency
    if pipeline.overlap is Overlap.NONE:
        times[sender] += way.occupancy
        return way.latency
    return way.occupancy + way.latency


def _memory(
    pipeline: Pipeline, rows: Rows, row: int, micro_batches: int, safe: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Base and limit of each column; no limit above what all micro-batches take together, which is none."""
    base, limit = [], []
    for column, devices in enumerate(rows.columns):
        own = [pipeline.stages[s] for s in rows.hosted(column)]
        workspace = (max if safe else min)(stage.workspace for stage in own)
        base.append(pipeline.runtime[devices[row]] + sum(stage.resident for stage in own) + workspace)
        all_of_it = base[-1] + micro_batches * sum(stage.held for stage in own)
        limit.append(min(pipeline.limits[devices[row]], all_of_it))
    return tuple(base), tuple(limit)
