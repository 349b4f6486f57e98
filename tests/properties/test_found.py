"""What is found is a schedule, never worse than a family's, and never better than what is proved."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from found_pipelines import family_pipeline
from pipeplan.cluster import Overlap
from pipeplan.errors import PlanError
from pipeplan.found import Found, find
from pipeplan.pipeline import Pipeline
from pipeplan.schedule import Schedule
from pipeplan.schedules import FAMILIES, PLACED
from pipeplan.simulate import makespan
from pipeplan.validate import validate_memory, validate_schedule
from pipeplan_formulations.report import Limits, Status

seeds = st.integers(0, 10**9)


def _fits(schedule: Schedule, pipeline: Pipeline) -> bool:
    try:
        validate_memory(schedule, pipeline)
    except PlanError:
        return False
    return True


def _families(pipeline: Pipeline, micro_batches: int) -> Iterator[Schedule]:
    """All that suit the pipeline, fit or not; stages of its devices are numbered as the families number them."""
    devices, stages = pipeline.devices, len(pipeline.stages)
    if devices == stages * pipeline.replicas[0]:
        for family in FAMILIES.values():
            if not family.two_lanes or pipeline.overlap is Overlap.STREAM:
                yield family.write(pipeline.replicas, micro_batches)
    chunks = stages // devices
    for placed in PLACED.values():
        possible = chunks and placed.chunks in (None, chunks) and not (placed.even and devices % 2)
        if possible and placed.placement(devices, chunks) == pipeline.placement:
            yield placed.write(devices, micro_batches, chunks)


def _check(found: Found, pipeline: Pipeline, micro_batches: int) -> None:
    """A schedule of the pipeline that keeps memory, timed by the simulator, not below the bound."""
    if found.schedule is None:
        assert found.status in (Status.INFEASIBLE, Status.UNKNOWN)
        return
    validate_schedule(found.schedule, len(pipeline.stages), micro_batches, pipeline.placement, pipeline.tied)
    validate_memory(found.schedule, pipeline)
    assert found.value == makespan(found.schedule, pipeline) >= found.bound


def _never_worse(seed: int) -> None:
    pipeline, micro_batches = family_pipeline(seed)
    found = find(pipeline, micro_batches, Limits(time=0.3, workers=1, seed=seed % 100))
    _check(found, pipeline, micro_batches)
    for schedule in _families(pipeline, micro_batches):
        if _fits(schedule, pipeline):
            value = makespan(schedule, pipeline)
            assert found.value is not None
            assert found.bound <= found.value <= value, schedule.family


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_what_is_found_is_never_worse_than_a_family(seed: int) -> None:
    """On up to 16 devices a found schedule fits, ends, is no slower than any family that fits, and above the bound."""
    _never_worse(seed)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(seeds)
def test_what_is_found_is_never_worse_than_a_family_at_length(seed: int) -> None:
    """The same, 300 times."""
    _never_worse(seed)
