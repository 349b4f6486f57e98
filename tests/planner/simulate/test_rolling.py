"""Runs through batches without a flush: periods by hand, and what binds them."""

from dataclasses import replace

import pytest

from helpers.pipelines import line
from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Stage
from pipeplan.core.schedule import Kind
from pipeplan.schedules import FAMILIES
from pipeplan.simulate import makespan, rolling, rolling_period, simulate


def alone(replicas: int, **times: int) -> Pipeline:
    """One stage on so many devices."""
    pipeline = line(1, 0, 0)
    stage = Stage(5, 10, resident=100, held=10, **times)
    devices = tuple(range(replicas))
    return replace(pipeline, stages=(stage,), placement=(devices,), runtime=(0,) * replicas, limits=(10**6,) * replicas)


def period(pipeline: Pipeline, many: int, family: str = "1f1b-sno") -> int:
    """From batch to batch."""
    return rolling_period(FAMILIES[family].write(pipeline.replicas, many), pipeline)


@pytest.mark.parametrize(("reduce", "expected"), [(0, 37), (20, 37), (37, 37), (50, 50)])
def test_a_sum_is_hidden_behind_the_next_batch(reduce: int, expected: int) -> None:
    """One stage takes the longer of its work with the update, 2 x 15 + 7, and its sum."""
    assert period(alone(2, update=7, reduce=reduce), 4) == expected


@pytest.mark.parametrize(("reduce", "gather", "expected"), [(20, 10, 37), (25, 10, 42), (20, 15, 42), (30, 30, 67)])
def test_a_gather_follows_the_update_in_the_middle(reduce: int, gather: int, expected: int) -> None:
    """F B F and then U, whose gather has the last backward beside it: more of either is waited for."""
    assert period(alone(2, update=7, reduce=reduce, gather=gather), 4) == expected


@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("many", [1, 2, 3])
def test_equal_stages_never_wait(depth: int, many: int) -> None:
    """With free links a batch takes its work, where a step with a flush takes a ramp besides."""
    pipeline = line(depth, 5, 10)
    count = many * depth
    assert period(pipeline, count) == 15 * count
    assert makespan(FAMILIES["1f1b-sno"].write((1,) * depth, count), pipeline) == 15 * (count + depth - 1)


def test_links_are_hidden_by_more_in_flight() -> None:
    """Transfers of 6 ns that cost SNO's counts a wait cost SO's none."""
    pipeline = line(2, 5, 10, occupancy=6, overlap=Overlap.COPY)
    assert period(pipeline, 8) > 15 * 8
    assert period(pipeline, 8, "1f1b-so") == 15 * 8


def test_a_time_line_shows_sums_beside_the_lists() -> None:
    """Reductions are on a lane of their own, numbered by batch, and take no memory."""
    pipeline = alone(2, update=7, reduce=20)
    schedule = FAMILIES["1f1b-sno"].write((2,), 4)
    timeline = simulate(rolling(schedule, pipeline, 3), pipeline)
    beside = [(str(span.action), span.start, span.end) for span in timeline.spans if span.lane and not span.device]
    assert beside == [("0R", 30, 50), ("0R1", 60, 80), ("0R2", 97, 117)]
    ends = [span.end for span in timeline.spans if span.action.kind is Kind.UPDATE and not span.device]
    assert ends == [67, 104, 124]
    assert timeline.peaks == simulate(schedule, pipeline).peaks
