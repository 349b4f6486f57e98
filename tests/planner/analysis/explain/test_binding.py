"""Cases whose binding resource is known by construction."""

from dataclasses import replace

import pytest

from helpers.explained import setting_of
from helpers.instances import model_of
from helpers.pipelines import line
from pipeplan.analysis.explain import explain, explain_plan
from pipeplan.analysis.explain.path import portions
from pipeplan.analysis.explain.sensitivities import joint_set, sensitivities
from pipeplan.analysis.explain.setting import uses
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job, Order
from pipeplan.schedules import FAMILIES
from pipeplan.solve import solve


def job(**fields: object) -> Job:
    """Job of sixteen micro-batches, devices in their order, one per stage."""
    return Job(batch=16, replicas=(1,), order=Order.GIVEN, **fields)  # type: ignore[arg-type]


def test_a_slow_device_binds() -> None:
    """Three equal layers on three devices with room for one each, the second four times as slow: it binds most."""
    slow = DeviceKind("slow", timed_as="unit", speed=0.25, memory=30)
    kinds = {"unit": DeviceKind("unit", memory=30), "slow": slow}
    cluster = Cluster("one slow", kinds, (Node(("unit", "slow", "unit")),), overlap=Overlap.COPY)
    result = solve(model_of([100] * 3, parameters=[12] * 3), cluster, job=job(schedules=("1f1b-sno",)))
    found = explain_plan(result.plan)
    assert (found.sensitivities[0].kind, found.sensitivities[0].stages) == ("devices", (1,))
    # the path: one forward and one backward on each neighbour, sixteen of both on the slow device
    assert found.sensitivities[0].fall == pytest.approx(0.1 * 16 * 1200 / (16 * 1200 + 300))
    assert max(found.uses, key=lambda use: use.busy).name == "d1 slow"


def test_a_slow_link_binds() -> None:
    """Two devices that compute little and must send a lot: both directions of their link bind more than a device."""
    cluster = Cluster.uniform(2, DeviceKind("unit", memory=44), Link(bandwidth=10**6))
    model = model_of([10, 10], output=[1, 1], parameters=[12, 12])
    result = solve(model, cluster, job=job(schedules=("gpipe",)))
    found = explain_plan(result.plan)
    assert {sensitivity.name for sensitivity in found.sensitivities[:2]} == {"the link d0 to d1", "the link d1 to d0"}
    assert found.sensitivities[1].fall > found.sensitivities[2].fall
    links = {use.name: use for use in found.uses if use.kind == "wire"}
    assert links["d0 to d1"].busy == 16 * 1000


def test_a_card_that_two_hops_share_binds_as_the_network() -> None:
    """Activations to stage 1 and gradients from stage 2 come in through one card: both hops are counted; it binds."""
    pipeline = line(3, 10, 10, occupancy=100)

    def through(ways: tuple, names: dict[int, str]) -> tuple:
        return tuple(
            tuple(replace(way, resources=(names[s],)) for way in entries) if s in names else entries
            for s, entries in enumerate(ways)
        )

    card = "node 1 card in"
    shared = replace(
        pipeline, transfers=through(pipeline.transfers, {0: card}), returns=through(pipeline.returns, {1: card})
    )
    setting = setting_of(FAMILIES["1f1b-sno"].write((1, 1, 1), 12), shared)
    use = next(use for use in uses(setting) if use.name == card)
    assert (use.kind, use.hops, use.busy) == ("card", 2, 24 * 100)
    assert all(other.hops == 1 for other in uses(setting) if other.kind == "wire")
    found = sensitivities(setting)
    assert (found[0].kind, found[0].link_resources) == ("network", (card,))
    assert any(portion.what == "wait" and portion.where == card for portion in portions(setting))


def test_two_equal_paths_bind_together_only() -> None:
    """Two stages whose only micro-batches meet by chance: neither update binds alone, both together do."""
    pipeline = line(2, 0, 0)
    stages = tuple(replace(stage, update=50) for stage in pipeline.stages)
    setting = setting_of(FAMILIES["gpipe"].write((1, 1), 2), replace(pipeline, stages=stages))
    assert sensitivities(setting) == ()
    joint = joint_set(setting)
    assert {sensitivity.stages for sensitivity in joint} == {(0,), (1,)}
    assert joint[0].fall == pytest.approx(0.1)


def test_a_small_memory_binds() -> None:
    """If a limit excludes the fastest plan, lifting it makes the step fall by the difference to a direct solve."""
    model = model_of([10] * 8 + [40], saved=[8] * 9, output=[2] * 9, sizes=(1, 2, 4, 8))
    question = Job(batch=16, memory=50)
    cluster = Cluster.uniform(3, DeviceKind("unit"))
    result = solve(model, cluster, job=question)
    free = solve(model, cluster, job=replace(question, memory=None))
    assert free.value < result.value
    found = explain(model, cluster, result=result, each=30)
    assert found.memory is not None
    assert (found.memory.value, found.memory.bound) == (free.value, free.bound)
    assert found.memory.gains == pytest.approx(1 - free.value / result.value)
    assert any(room.tight for room in found.rooms)
    assert found.as_json()["memory_binds"] is True
    # without the limit nothing is tight, and lifting it again gains nothing
    roomy = explain(model, cluster, result=free, each=30)
    assert roomy.memory is None and not any(room.tight for room in roomy.rooms)
    assert roomy.memory_binds is False and explain_plan(result.plan).memory_binds is None


@pytest.mark.parametrize(("limit", "tight"), [(58, False), (57, True)])
def test_room_for_a_layer(limit: int, tight: bool) -> None:
    """Stage 0 holds 24 + 2 x 2 bytes; the second layer would add 24 + 2 x 3: it fits in 58, and not in 57."""
    model = model_of([10, 10], saved=[2, 3], parameters=[12, 12])
    cluster = Cluster.uniform(2, DeviceKind("unit", memory=limit))
    result = solve(model, cluster, job=job(schedules=("1f1b-sno",)))
    first, _ = explain(model, cluster, result=result, each=0.5).rooms
    assert (first.peak, first.micro_batch, first.layer, first.tight) == (28, 2, 30, tight)


def test_an_endless_pipeline_has_no_step_to_explain() -> None:
    """An answer about the bottleneck is refused, as an object and as a plan by itself."""
    cluster = Cluster.uniform(2, DeviceKind("unit"))
    result = solve(model_of([10, 20]), cluster, batch=4, objective="bottleneck")
    with pytest.raises(InputError, match="objective"):
        explain(model_of([10, 20]), cluster, result=result)
    with pytest.raises(InputError, match="--objective step"):
        explain_plan(result.plan)


def test_path_in_words() -> None:
    """Fill, steady, drain and end name the right stages with the right counts."""
    pipeline = line(3, 0, 0, times=[(10, 20), (30, 60), (10, 20)], occupancy=5)
    stages = tuple(replace(stage, update=7) for stage in pipeline.stages)
    setting = setting_of(FAMILIES["1f1b-so"].write((1, 1, 1), 6), replace(pipeline, stages=stages))
    counted = {(p.phase, p.what, p.stage): p.count for p in portions(setting) if p.stage is not None}
    assert counted == {
        ("fill", "forward", 0): 1,
        ("steady", "forward", 1): 6,
        ("steady", "backward", 1): 6,
        ("drain", "backward", 0): 1,
        ("end", "update", 0): 1,
    }
    moved = [(p.phase, p.where) for p in portions(setting) if p.what == "transfer"]
    assert moved == [("fill", "d0 → d1"), ("drain", "d1 → d0")]
    text = str(explain_plan(setting.plan))
    assert "6 forwards and 6 backwards on stage 1 (d1 unit)" in text
