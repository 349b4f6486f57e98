"""The period of a run through batches without a flush, whose gradients are one step late (`pipeplan.schedules.stale`).

::

    stage 0     F F B F B F B F B F B …        end of the last backward of batch 0, 1, 2, …
                        ├─ T ─┤─ T ─┤

Batches that are two apart depend on each other, through the update between them. So the average of two, when the
pipeline is full, is the period; it is never less than what the busiest stage or link does for a batch, its load. The
last batch is left out, whose list lacks the update that would be in the middle of a longer run.
"""

from collections import Counter

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Transfer
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.schedules.stale import through_batches
from pipeplan.simulate.program import Program
from pipeplan.simulate.run import Trace

BATCHES = 7
"""Batches that are simulated: the period is the average of the two before the last one."""
SHOWN = 4
"""Batches of a time line that is shown."""


def rolling(schedule: Schedule, pipeline: Pipeline, batches: int = BATCHES) -> Schedule:
    """Return the lists of a batch written on through several batches, with the gathers of the pipeline's stages."""
    gathers = [s for s, stage in enumerate(pipeline.stages) if stage.gather]
    return through_batches(schedule, batches, gathers)


def period_of(program: Program, trace: Trace) -> int:
    """Return the average nanoseconds of the two batches before the last of `BATCHES`, rounded up."""
    many = max(action.micro_batch for action in program.actions if action.kind is Kind.FORWARD) + 1
    ends = [0] * BATCHES
    for i, action in enumerate(program.actions):
        if action.kind is Kind.BACKWARD and not action.stage:
            batch = action.micro_batch * BATCHES // many
            ends[batch] = max(ends[batch], trace.signals[i])
    return -(-(ends[-2] - ends[-4]) // 2)


def load(pipeline: Pipeline, micro_batches: int) -> int:
    """Return the nanoseconds for which the busiest stage or link is busy with a batch, sums and gathers beside it."""
    sends = [min(transfer.occupancy for transfer in row) for row in pipeline.transfers]
    waits = [0, *sends, 0] if pipeline.overlap is Overlap.NONE else [0] * (len(pipeline.stages) + 1)
    most = 0
    for s, (stage, replicas) in enumerate(zip(pipeline.stages, pipeline.replicas, strict=True)):
        work = stage.total(Kind.FORWARD, Kind.BACKWARD) + waits[s] + waits[s + 1]
        beside = pipeline.ending(s) - stage.update + stage.gather
        most = max(most, -(-micro_batches // replicas) * work + stage.update, beside)
    if pipeline.overlap is Overlap.NONE:
        return most
    return max(
        [most, *(busiest(row, micro_batches) * send for row, send in zip(pipeline.transfers, sends, strict=True))]
    )


def busiest(row: tuple[Transfer, ...], many: int) -> int:
    """Return the number of micro-batches on the busiest resource of a boundary in a step."""
    counts = Counter[str]()
    for m, transfer in enumerate(row):
        for resource in transfer.resources:
            counts[resource] += -(-(many - m) // len(row))
    return max(counts.values(), default=0)
