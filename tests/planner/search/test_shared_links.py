"""Loads of shared links of device groups, checked by hand."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np

from helpers.instances import model_of
from pipeplan.core.cluster import Cluster, Device, DeviceKind, Link, Node, Overlap
from pipeplan.core.job import Job
from pipeplan.search.evaluate import evaluate
from pipeplan.search.space.shared_links import shared_link_loads
from pipeplan.search.space.space import Space

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


Loads = dict[tuple[str, int], list[int]]
"""By card: ``out`` or ``in``, and the node."""


def card_loads(groups: list[tuple[Device, ...]], boundary: int, many: int, back: bool) -> Loads:
    """Seconds that each node's card is busy in a step with a boundary's tensors, counted one by one."""
    ends, found = groups[boundary : boundary + 2], Counter[tuple[str, int]]()
    for m in range(many):
        source, target = (group[m % len(group)].node for group in (reversed(ends) if back else ends))
        if source != target:
            found.update({("out", source): 1, ("in", target): 1})
    return {card: (times * (boundary + 1) * BYTES).tolist() for card, times in found.items()}


def test_pairs_of_loads_are_what_a_card_carries_for_both_boundaries() -> None:
    """Drawn stages in nodes: for a boundary and the very next one, never over one inside a node between two others."""
    inside = 0
    for seed in range(60):
        draw = Random(f"cards {seed}")
        node = Node(("unit",) * 4, Link(10**9))
        cluster = Cluster("three", {"unit": DeviceKind("unit")}, (node,) * 3, network=Link(1))
        left, many, groups = list(cluster.devices), draw.randint(1, 9), list[tuple[Device, ...]]()
        if draw.random() < 0.3:
            draw.shuffle(left)
        for size in (draw.randint(1, 3) for _ in range(draw.randint(3, 5))):
            groups.append(tuple(left[:size]))
            del left[:size]
        groups = [group for group in groups if group]
        expected = set()
        for back in (False, True):
            loads = [card_loads(groups, s, many, back) for s in range(len(groups) - 1)]
            inside += sum(not own for own in loads[1:-1])
            for s, (first, second) in enumerate(pairwise(loads)):
                expected |= {(s, back, *first[card], *second[card]) for card in {*first} & {*second}}
        found = shared_link_loads(cluster, groups, many, lambda s, link: (s + 1) * occupancy(s, link))
        pairs = {(own.link, own.back, *own.busy, *own.beyond) for own in found if own.beyond is not None}
        assert pairs == expected, seed
    assert inside > 5


def slow_pairs(draw: Random) -> tuple[int, int]:
    """The largest σ of a random pipeline's stages, and what its partition's bound gains; it is no more than the step.

    Three nodes of two or three devices, packed by up to four stages.
    """
    node = Node(("unit",) * draw.randint(2, 3), Link(draw.choice([40, 10**9]), draw.randint(0, 3)))
    network = Link(draw.choice([1, 10, 100]) * 10**6, draw.randint(0, 9))
    cluster = Cluster("three", {"unit": DeviceKind("unit")}, (node,) * 3, network, Overlap.COPY)
    layers = draw.randint(4, 6)
    times = [[draw.randint(1, 9) * 1000 for _ in range(layers)] for _ in "FB"]
    model = model_of(*times, output=[draw.choice([20, 30]) for _ in range(layers)])
    batch = draw.randint(4, 12)
    space = Space(model, cluster, Job(batch, micro_batches=(batch,), zero=(0,)))
    groups, left = [], list(cluster.devices)
    while left and len(groups) < 4:
        count = draw.randint(1, min(3, len(left)))
        groups.append(tuple(left[:count]))
        del left[:count]
    edges = (0, *sorted(draw.sample(range(1, layers), len(groups) - 1)), layers)
    candidate = draw.choice([each for each in space.candidates(tuple(groups), 1) if each.family.alternates])
    plain = replace(candidate, slower_pairs=None).problem.evaluate(edges)
    bound = candidate.problem.evaluate(edges)
    assert plain <= bound <= evaluate(cluster, candidate, edges).value
    return max(each.slower for each in candidate.problem.through), bound - plain


def test_slow_pairs_lengthen_the_round_trip_and_no_bound_exceeds_the_step():
    """Micro-batches take turns and are run in order, so it is known which of them pass over slow pairs of replicas."""
    found = [slow_pairs(Random(seed)) for seed in range(150)]
    assert sum(sigma > 0 for sigma, _ in found) > 30
    assert sum(gain > 0 for _, gain in found) > 10


def test_inside_a_node_nothing_is_shared():
    """Every pair of devices of a node has a link of its own."""
    d = two_nodes().devices
    assert shared_link_loads(two_nodes(), ((d[0],), (d[1], d[2])), 8, occupancy) == ()
