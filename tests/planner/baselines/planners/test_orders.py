"""Orders of unlike devices along a pipeline."""

from itertools import permutations

from pipeplan.baselines.planners.orders import device_orders
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node

KINDS = {name: DeviceKind(name) for name in ("fast", "slow")}
NETWORK = Link(10**9, 1000)


def rows(cluster: Cluster, **how: int) -> list[tuple[int, ...]]:
    """The orders as device numbers."""
    return [tuple(device.index for device in order) for order in device_orders(cluster, **how)]


def test_equal_devices_have_one_order() -> None:
    """Devices of one kind in one node, and in equal nodes, are tried in the cluster's order only."""
    assert rows(Cluster.uniform(4, KINDS["fast"])) == [(0, 1, 2, 3)]
    nodes = (Node(("fast", "fast")),) * 3
    assert rows(Cluster("nodes", KINDS, nodes, NETWORK)) == [(0, 1, 2, 3, 4, 5)]


def test_every_order_of_unlike_devices_once() -> None:
    """Two kinds in one node: each sequence of kinds appears exactly once, the cluster's own first."""
    cluster = Cluster("mix", KINDS, (Node(("slow", "fast", "slow", "fast", "fast")),))
    kinds = [device.kind.name for device in cluster.devices]
    found = [tuple(kinds[index] for index in row) for row in rows(cluster)]
    assert found[0] == tuple(kinds)
    assert len(found) == len(set(found))
    assert set(found) == set(permutations(kinds))
    assert all(sorted(row) == [0, 1, 2, 3, 4] for row in rows(cluster))


def test_too_many_orders_keep_like_devices_together() -> None:
    """Beyond the limit only the order of the groups varies."""
    cluster = Cluster("two boxes", KINDS, (Node(("fast",) * 3), Node(("slow",) * 3)), NETWORK)
    assert len(rows(cluster)) == 20
    assert rows(cluster, most=19) == [(0, 1, 2, 3, 4, 5), (3, 4, 5, 0, 1, 2)]


def test_unequal_boxes_of_one_kind_change_places() -> None:
    """Boxes of one kind that differ in size or link are different places; equal ones are not."""
    small, large = Node(("fast",)), Node(("fast", "fast"))
    cluster = Cluster("boxes", KINDS, (small, large, small), NETWORK)
    assert sorted(rows(cluster)) == [(0, 1, 2, 3), (0, 3, 1, 2), (1, 2, 0, 3)]
