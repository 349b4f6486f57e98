"""Devices that run forwards on one lane and everything else on another, both at once (`pipeplan.schedules.alternate`).

Which devices may: those whose tensors stream. They are what FBP is made for, arithmetic units that are divided between
the two passes.
"""

from dataclasses import replace

from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Stage
from pipeplan.core.schedule import Kind
from pipeplan.simulate.program import two_lane_durations


def may_have_lanes(pipeline: Pipeline) -> bool:
    """Whether orders of two lanes are looked for beside those of one."""
    return pipeline.overlap is Overlap.STREAM


def in_two_lanes(pipeline: Pipeline) -> Pipeline:
    """The pipeline whose actions on one lane would take as long as its own do on two."""
    return replace(pipeline, stages=tuple(map(_slowed, pipeline.stages)))


def _slowed(stage: Stage) -> Stage:
    time = two_lane_durations(stage)
    return replace(
        stage,
        forward=time[Kind.FORWARD],
        backward=time[Kind.BACKWARD],
        input_gradient=time[Kind.INPUT_GRADIENT],
        weight_gradient=time[Kind.WEIGHT_GRADIENT],
    )
