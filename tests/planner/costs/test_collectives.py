"""Links with measured collectives: costs of a ring all-reduce, and the field in the file."""

from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest

from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance
from pipeplan.costs.network import joint_ring, rings, rings_over_nodes, shared, transfer
from pipeplan.costs.occupancy import MOST, occupancies
from pipeplan.costs.pricing import price
from pipeplan.io.cluster_file import cluster_from_data, read_cluster, write_cluster

FAST = Link(2 * 10**9, 1_000, collective_efficiency=0.5)
CLUSTER = Cluster("c", {"k": DeviceKind("k")}, (Node(("k",) * 4, FAST),))


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_rounds_run_at_the_measured_share_of_the_bandwidth(replicas: int) -> None:
    """Each of 2 (r - 1) rounds moves 1/r of the bytes at half of 2 GB/s; latency and transfers stay as they were."""
    devices = CLUSTER.devices
    (ring,) = rings(CLUSTER, [devices[:replicas]])
    size = 12_000_000
    assert ring.times(np.array([size])).tolist() == [2 * (replicas - 1) * size // replicas]  # 1 byte a nanosecond
    assert ring.base == 2 * (replicas - 1) * 1_000
    assert transfer(CLUSTER, devices[0], devices[1], size).occupancy == size // 2


@pytest.mark.parametrize("bandwidth", [None, 1, 3, 10**9, 25 * 10**9 + 1])
def test_many_sizes_at_once_keep_a_link_busy_as_each_does(bandwidth: int | None) -> None:
    """Up to where 64 bits are enough, and beyond."""
    link = Link(bandwidth, 0)
    small = [0, 1, 2, 10**6, MOST - 1, MOST]
    large = [] if bandwidth in (1, 3) else [MOST + 1, 10**12]
    for sizes in (small, [*small, *large]):
        found = occupancies(link, np.array([sizes, sizes[::-1]]))
        assert found.tolist() == [[link.occupancy(size) for size in row] for row in (sizes, sizes[::-1])]


def test_a_shared_card_is_shared_in_collectives_too() -> None:
    """Three rings that pass one card have a third each of what its collectives reach."""
    assert shared(Link(3 * 10**9, 0, 0.5), 3).in_collectives.occupancy(10**6) == 2 * 10**6


@pytest.mark.parametrize("others", [0, 1, 2])
def test_rings_over_nodes_share_their_cards(others: int) -> None:
    """Each ring that spans two nodes has its part of their cards; those inside a node take nothing of them."""
    node = Node(("k",) * 4, FAST)
    two = Cluster("two", {"k": DeviceKind("k")}, (node, node), network=Link(6 * 10**8, 0))
    d = two.devices
    spanning = [(d[i], d[4 + i]) for i in range(1 + others)]
    alone = (d[3],), (d[7],)
    for ring in rings(two, [*spanning, *alone])[: 1 + others]:
        assert ring.link.bandwidth == 6 * 10**8 // (1 + others)
    *_, inside = rings(two, [spanning[0], (d[2], d[3])])
    assert inside.link == FAST


def test_stages_on_the_same_devices_use_a_card_once() -> None:
    """They sum one after the other: each ring has the whole card, or a half beside that of another stage."""
    own = Cluster("c", {"k": DeviceKind("k")}, (Node(("k",) * 2),) * 2, Link(6 * 10**9))
    a, b, c, d = own.devices
    assert [ring.link.bandwidth for ring in rings(own, [(a, c), (a, c)])] == [6 * 10**9] * 2
    assert [ring.link.bandwidth for ring in rings(own, [(a, c), (b, d), (a, c)])] == [3 * 10**9] * 3


def test_a_free_link_is_free_for_collectives() -> None:
    """Without a bandwidth there is nothing to have a share of."""
    assert Link(None, 5, 0.1).in_collectives.occupancy(10**9) == 0


@pytest.mark.parametrize("efficiency", [0.0, -0.5, inf, nan])
def test_a_share_that_makes_no_sense_is_refused(efficiency: float) -> None:
    """In Python and in a file, where the error tells the path."""
    with pytest.raises(InputError, match="collective_efficiency must be a finite number above 0"):
        Link(1, 0, efficiency)
    link = {"bandwidth": "1GB/s", "collective_efficiency": efficiency}
    data = {"name": "c", "devices": {"k": {}}, "nodes": [{"devices": [{"kind": "k"}], "link": link}]}
    with pytest.raises(InputError, match=r"nodes\[0\]\.link\.collective_efficiency: "):
        cluster_from_data(data, "c.yaml")


def test_a_file_keeps_the_share(tmp_path: Path) -> None:
    """It is written where it is not 1, and read back, for the links of a node and for the network."""
    nodes = (Node(("k", "k"), FAST), Node(("k",), Link(7)))
    cluster = replace(CLUSTER, nodes=nodes, network=Link(10**9, 0, 1.25))
    write_cluster(cluster, tmp_path / "c.yaml")
    assert read_cluster(tmp_path / "c.yaml") == cluster
    assert (tmp_path / "c.yaml").read_text().count("collective_efficiency") == 2


def test_units_have_an_overhead_and_a_share_of_the_share(tmp_path: Path) -> None:
    """A layer of 4 MB on two replicas: one round of 2 MB at a quarter of 1 GB/s, its latency, and 5 us more."""
    link = Link(10**9, 1_000, 0.5, unit_overhead=5_000, unit_efficiency=0.5)
    layers = (Layer("a", 4 * 10**6), Layer("b", 0, ("a",)))
    cost = LayerCost(10, 20, 10, 10, saved=1, output=1)
    model = Model("m", layers, (Profile("k", 1, (cost, cost), Provenance("imported", "by hand")),))
    cluster = replace(CLUSTER, nodes=(Node(("k", "k"), link),), network=None)
    chain = price(model, cluster, [cluster.devices], 1, Job(2, zero=(3,), overlap_reduction=False))
    unit = 8 * 10**6 + 1_000 + 5_000
    assert (chain.forward - 10).tolist() == [[unit, 0]]
    assert (chain.backward - 20).tolist() == [[2 * unit, 0]]
    assert price(model, cluster, [cluster.devices[:1]], 1, Job(2, zero=(3,))).forward.tolist() == [[10, 10]]
    write_cluster(cluster, tmp_path / "c.yaml")
    assert read_cluster(tmp_path / "c.yaml") == cluster


@pytest.mark.parametrize(
    ("network", "inside", "slow"),
    [
        (Link(10**10), Link(10**9), "inside"),
        (Link(10**9), Link(10**10), "network"),
        (Link(10**10, 0, 0.05), Link(10**9), "network"),
        (Link(None, 5), Link(None, 3), "network"),
        (Link(None, 3), Link(None, 5), "inside"),
    ],
)
def test_a_ring_is_as_fast_as_its_slowest_link(network: Link, inside: Link, slow: str) -> None:
    """Over nodes it passes the network, and the link inside a node that has two of its replicas."""
    devices = Cluster("c", {"k": DeviceKind("k")}, (Node(("k",) * 2, inside),) * 2, network)
    first, second, third, _ = devices.devices
    both, apart = rings(devices, [(first, second, third)])[0], rings(devices, [(first, third)])[0]
    assert both.link == (inside if slow == "inside" else network)
    assert apart.link == network
    assert any(
        (ring.times(np.array([10**6])) <= both.times(np.array([10**6]))).all() and ring.base <= both.base
        for ring in rings_over_nodes(3, network, inside)
    )


def test_joint_rings_pass_the_links_inside_nodes() -> None:
    """Two stages of a replica each in one node, and one in another, that share weights."""
    own = Cluster("c", {"k": DeviceKind("k")}, (Node(("k",) * 2, Link(10**9)), Node(("k",))), Link(10**10))
    first, second, third = ((device,) for device in own.devices)
    assert joint_ring(own, (first, second, third), (0, 1, 2)).link == Link(10**9)
    assert joint_ring(own, (first, second, third), (0, 2)).link == Link(10**10)


def test_joint_rings_share_the_cards_of_their_nodes() -> None:
    """A tied ring over two nodes has half of the network beside another stage's ring, and a third beside two."""
    own = Cluster("c", {"k": DeviceKind("k")}, (Node(("k",) * 3),) * 2, Link(6 * 10**9))
    a, b, c, d, e, f = own.devices
    assert joint_ring(own, ((a, d), (b,), (e,)), (1, 2)).link == Link(3 * 10**9)
    assert joint_ring(own, ((a, d), (b, e), (c,), (f,)), (2, 3)).link == Link(2 * 10**9)
    assert joint_ring(own, ((a, d), (b,), (e,)), (0, 1, 2)).link == Link(6 * 10**9)  # its own rings wait for it


def test_rings_of_stages_on_the_same_devices_use_a_card_once() -> None:
    """Also beside a tied ring of other stages; those on its own devices wait for it, whatever their stages."""
    own = Cluster("c", {"k": DeviceKind("k")}, (Node(("k",) * 3),) * 2, Link(6 * 10**9))
    a, b, c, d, e, f = own.devices
    v = ((a, d), (b, e), (b, e), (a, d))
    assert [ring.link for ring in rings(own, v)] == [Link(3 * 10**9)] * 4
    assert joint_ring(own, v, (0, 1)).link == Link(6 * 10**9)
    assert joint_ring(own, ((a, d), (c, f), (c, f), (a, d)), (1, 3)).link == Link(6 * 10**9)
    assert joint_ring(own, ((a, d), (b,), (e,), (a, d)), (1, 2)).link == Link(3 * 10**9)
