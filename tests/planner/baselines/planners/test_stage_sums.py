"""Arrangements of Alpa's programme by hand; `test_peers` compares it with every choice."""

import pytest

from helpers.instances import equal_devices, model_of, two_kinds_of_device
from pipeplan.baselines.partitioners import NotApplicable
from pipeplan.baselines.planners import Arrangement
from pipeplan.baselines.planners.alpa import arrange, shapes
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.job import Job


def test_submeshes_are_powers_of_two_and_whole_nodes() -> None:
    """A node of six devices has submeshes of 1, 2, 4 and 6; two of them also one of 12."""
    six = Node(("unit",) * 6)
    cluster = Cluster("nodes", {"unit": DeviceKind("unit")}, (six, six), Link(10**9))
    assert shapes(cluster) == [1, 2, 4, 6, 12]
    assert shapes(equal_devices(4)) == [1, 2, 4]


def test_one_heavy_layer_gets_two_devices() -> None:
    """The heavy layer takes 60 ns on two devices; gradients of the others are too large to be summed."""
    model = model_of([40, 10, 10, 10], saved=[1] * 4, output=[1] * 4, parameters=[0, *[10**5] * 3])
    (found,) = arrange(model, equal_devices(3, link=Link(10**9)), Job(64), 1)
    assert found == Arrangement((0, 1, 4), ((0, 1), (2,)))


def test_memory_decides_what_a_stage_may_hold() -> None:
    """With 12 bytes the first of two stages holds one layer of 4 bytes twice, not two; with less no stages fit."""
    model = model_of([10, 10, 10], saved=[4, 4, 4], output=[4, 4, 4])
    job = Job(8, recompute="none", replicas=(1,))
    (found,) = arrange(model, equal_devices(2, memory=12), job, 1)
    assert found.boundaries == (0, 1, 3)
    with pytest.raises(NotApplicable, match="no stages that fit on all 2 devices"):
        arrange(model, equal_devices(2, memory=6), job, 1)


def test_unlike_devices_come_in_both_orders() -> None:
    """Stages take kinds one after the other, in the cluster's order and in the reverse one; or as they are given."""
    model, cluster = model_of([10] * 12, saved=[1] * 12), two_kinds_of_device()
    kinds = [device.kind.name for device in cluster.devices]
    found = arrange(model, cluster, Job(16), 1)
    rows = [[kinds[stage[0]] for stage in one.devices] for one in found]
    assert [row[0] for row in rows] == [kinds[0], kinds[-1]]
    (given_order,) = arrange(model, cluster, Job(16, order="given"), 1)
    assert [device for stage in given_order.devices for device in stage] == [0, 1, 2, 3]


def test_wide_stages_do_not_divide_nodes() -> None:
    """Stages of 1, 2 and 1 devices on two nodes of two: the wide one has a node of its own."""
    pair = Node(("unit", "unit"), Link(10**12))
    cluster = Cluster("nodes", {"unit": DeviceKind("unit")}, (pair, pair), Link(10**9))
    model = model_of([10, 20, 10], saved=[1] * 3, output=[1] * 3, parameters=[10**8, 0, 10**8])
    (found,) = arrange(model, cluster, Job(64), 1)
    assert found == Arrangement((0, 1, 2, 3), ((2,), (0, 1), (3,)))


@pytest.mark.parametrize("kinds", [1, 2])
def test_a_limit_hides_no_better_value(kinds: int) -> None:
    """Stages are found if their value is below a limit by whatever little, and none if it is not."""
    model = model_of([40, 10, 10, 10], saved=[1] * 4)
    cluster = two_kinds_of_device() if kinds == 2 else equal_devices(4)
    least = min(one.value for one in arrange(model, cluster, Job(64), 1))
    assert min(one.value for one in arrange(model, cluster, Job(64), 1, least * (1 + 1e-6))) == least
    with pytest.raises(NotApplicable, match="no stages"):
        arrange(model, cluster, Job(64), 1, least)
