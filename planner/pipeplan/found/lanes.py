"""Devices that run forwards on one lane and everything else on another, both at once (`pipeplan.schedules.fbp`).

Which devices may: those whose tensors stream. They are what FBP is made for, arithmetic units that are divided between
the two passes.
"""

from dataclasses import replace
from functools import partial

from pipeplan.cluster import Overlap
from pipeplan.pipeline import Pipeline
from pipeplan.simulate.program import two_lane_duration


def may_have_lanes(pipeline: Pipeline) -> bool:
    """Whether orders of two lanes are looked for beside those of one."""
    return pipeline.overlap is Overlap.STREAM


def in_two_lanes(pipeline: Pipeline) -> Pipeline:
    """The pipeline whose actions on one lane would take as long as its own do on two."""
    stages = (stage.with_durations(partial(two_lane_duration, stage)) for stage in pipeline.stages)
    return replace(pipeline, stages=tuple(stages))
