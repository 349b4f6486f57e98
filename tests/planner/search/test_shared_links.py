"""Loads of shared links of device groups, checked by hand."""

import numpy as np

from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.search.space.shared_links import shared_link_loads

BYTES = np.array([10, 20])
"""Bytes over each of two layer boundaries."""


def two_nodes() -> Cluster:
    """Two nodes of three: 10 bytes/s inside, 1 byte/s between them."""
    node = Node(("unit",) * 3, Link(10))
    return Cluster("two", {"unit": DeviceKind("unit")}, (node, node), network=Link(1))


def occupancy(_: int, link: Link) -> np.ndarray:
    """Seconds of a transfer on a link."""
    return BYTES // link.bandwidth


def test_a_card_that_some_replicas_pass_serves_their_micro_batches_in_turn():
    """Two of three replicas send through the card, so 4 of 5 micro-batches pass it."""
    d = two_nodes().devices
    found = shared_link_loads(two_nodes(), ((d[1], d[2], d[3]), (d[4],)), 5, occupancy)
    assert [(each.link, each.back, each.busy.tolist(), each.beyond) for each in found] == [
        (0, False, [40, 80], None),
        (0, True, [40, 80], None),
    ]


def test_the_last_replicas_in_turn_have_fewer_micro_batches():
    """Of five the second of three replicas has two and the third has one; the first sends inside its node."""
    d = two_nodes().devices
    found = shared_link_loads(two_nodes(), ((d[3], d[1], d[2]), (d[4],)), 5, occupancy)
    assert [each.busy.tolist() for each in found] == [[30, 60], [30, 60]]


def test_a_card_serves_both_links_of_a_stage_that_lies_in_two_nodes():
    """Stage 1 lies in both nodes: half of its received and half of its sent tensors pass the card."""
    d = two_nodes().devices
    found = shared_link_loads(two_nodes(), ((d[1],), (d[2], d[3]), (d[4],)), 4, occupancy)
    both = [each for each in found if each.beyond is not None]
    assert [(each.link, each.back, each.busy.tolist(), each.beyond.tolist()) for each in both] == [
        (0, False, [20, 40], [20, 40]),
        (0, True, [20, 40], [20, 40]),
    ]


def test_inside_a_node_nothing_is_shared():
    """Every pair of devices of a node has a link of its own."""
    d = two_nodes().devices
    assert shared_link_loads(two_nodes(), ((d[0],), (d[1], d[2])), 8, occupancy) == ()
