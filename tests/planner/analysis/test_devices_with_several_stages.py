"""What devices with several stages need counts all of their stages, wherever memory is asked about."""

import sys
from dataclasses import replace

import pytest

from helpers.instances import model_of
from pipeplan.analysis.explain import explain_plan
from pipeplan.analysis.frontier import frontier
from pipeplan.core.cluster import Cluster, DeviceKind, Link
from pipeplan.core.job import Job
from pipeplan.simulate import memory_of_ranks, simulate
from pipeplan.solve import solve

MODEL = model_of([10] * 8, saved=[9, 5, 5, 5, 5, 5, 5, 9], output=[2] * 8, parameters=[8] * 8)
CLUSTER = Cluster.uniform(2, DeviceKind("unit", memory=10_000, runtime=100), Link(10**9, 1))
JOB = Job(4, micro_batches=(4,), chunks=(2,), replicas=(1,), recompute="choose", optimizer="sgd")


def test_points_of_a_frontier_need_what_they_say() -> None:
    """With that memory there is this plan, and with a byte less none that is as fast."""
    found = frontier(MODEL, CLUSTER, JOB)
    assert len(found.points) > 1
    for point in found.points:
        assert point.memory == max(simulate(point.plan.schedule, point.plan.pipeline).peaks)
        assert solve(MODEL, CLUSTER, job=replace(JOB, memory=point.memory)).value == point.value
    for below, point in zip(found.points, found.points[1:], strict=False):
        assert solve(MODEL, CLUSTER, job=replace(JOB, memory=point.memory - 1)).value == below.value


def test_the_text_of_an_answer_simulates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What devices hold of their stages is known by their lists: of many devices a simulation takes seconds."""
    result = solve(MODEL, CLUSTER, job=JOB)
    assert max(map(len, result.plan.pipeline.stages_on)) == 2
    monkeypatch.setattr(sys.modules["pipeplan.simulate"], "run", None)
    with pytest.raises(TypeError):
        simulate(result.plan.schedule, result.plan.pipeline)
    assert "for its 2 stages together" in str(result)


def test_rooms_are_those_of_devices() -> None:
    """One for each device: its peak, and the least that any of its stages would take more."""
    plan = solve(MODEL, CLUSTER, job=JOB).plan
    rooms = explain_plan(plan).rooms
    assert [room.peak for room in rooms] == [*memory_of_ranks(plan)] == [*simulate(plan.schedule, plan.pipeline).peaks]
    assert [room.stage for room in rooms] == [0, 1]
    assert (
        max(stage.memory.total for stage in plan.stages)
        < rooms[0].peak
        < 2 * max(stage.memory.total for stage in plan.stages)
    )
