"""Costs of sending a tensor between two devices, and of summing gradients over the replicas of a stage."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.cluster import Cluster, Device, Link
from pipeplan.core.pipeline import Transfer

PAIRED = 16
"""Up to so many stages every pair of them is looked at, to know what any two would take to sum gradients."""


def transfer(cluster: Cluster, source: Device, target: Device, size: int) -> Transfer:
    """``size`` bytes from ``source`` to ``target``.

    Inside a node every ordered pair of devices has its own wire. Between nodes a tensor passes the sending node's
    card outwards and the receiving node's card inwards; all devices of a node share its card. No bytes still take the
    latency: the receiver has to learn that it may go on.
    """
    if source.index == target.index:
        return Transfer()
    link = cluster.link(source, target)
    if source.node == target.node:
        resources: tuple[str, ...] = (f"d{source.index} to d{target.index}",)
    else:
        resources = (f"node {source.node} card out", f"node {target.node} card in")
    return Transfer(size, link.occupancy(size), link.latency, resources)


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring all-reduce among the replicas of a stage: 2 (r − 1) rounds, each of which moves 1/r of the bytes.

    The rounds of a ring pass its slowest link. Rings of several stages that leave their nodes share the nodes' cards
    all the time (Patarasuk and Yuan, 2009, for the ring; the standing share of a card is our assumption). A round runs
    at the link's bandwidth, or at the share of it that was measured for collectives.
    """

    replicas: int
    link: Link

    @property
    def base(self) -> int:
        """Nanoseconds of latency in all rounds."""
        return 2 * (self.replicas - 1) * self.link.latency

    def times(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Nanoseconds that each of these numbers of bytes adds."""
        rounds = 2 * (self.replicas - 1)
        of_size = {size: self._time(size, rounds) for size in set(sizes.tolist())}
        return np.array([of_size[size] for size in sizes.tolist()], np.int64)

    def _time(self, size: int, rounds: int) -> int:
        """What there is to reduce takes a nanosecond at least, so that its stage counts as one that reduces."""
        return max(rounds * self.link.in_collectives.occupancy(-(-size // self.replicas)), 1) if size and rounds else 0


def rings(cluster: Cluster, groups: Sequence[Sequence[Device]]) -> tuple[Ring, ...]:
    """The ring of each stage, given the devices of all of them."""
    nodes = [{device.node for device in group} for group in groups]
    crowd = Counter(node for own in nodes if len(own) > 1 for node in own)
    return tuple(
        Ring(len(group), _slowest(cluster, own, max(crowd[node] for node in own)))
        for group, own in zip(groups, nodes, strict=True)
    )


def _slowest(cluster: Cluster, nodes: set[int], rings_on_a_card: int) -> Link:
    if len(nodes) == 1:
        return cluster.nodes[next(iter(nodes))].link
    assert cluster.network is not None
    return shared(cluster.network, rings_on_a_card)


def shared(link: Link, users: int) -> Link:
    """What each of so many has of a link that all of them use all the time."""
    return link if link.bandwidth is None else replace(link, bandwidth=max(link.bandwidth // users, 1))


def joint_ring(cluster: Cluster, groups: Sequence[Sequence[Device]], members: Sequence[int]) -> Ring:
    """The ring through all replicas of the stages ``members``, given the devices of all stages.

    Between nodes it shares the cards with the rings of other stages; those of its own stages wait for it.
    """
    homes = [{device.node for device in group} for group in groups]
    own = set[int]().union(*(homes[s] for s in members))
    others = Counter(node for s, nodes in enumerate(homes) if len(nodes) > 1 and s not in members for node in nodes)
    replicas = sum(len(groups[s]) for s in members)
    return Ring(replicas, _slowest(cluster, own, 1 + max(others[node] for node in own)))


def together(cluster: Cluster, groups: Sequence[Sequence[Device]], members: Sequence[int], size: int) -> int:
    """Nanoseconds in which all replicas of the stages ``members`` sum ``size`` bytes; 0 if that is one stage.

    Rounding may make a ring of more replicas faster; it counts as no faster than one of any two of the stages.
    """
    if len(members) < 2:
        return 0
    rows = [members, *(combinations(members, 2) if len(members) > 2 else ())]
    return max(alone(joint_ring(cluster, groups, row), size) for row in rows)


def least_together(cluster: Cluster, groups: Sequence[Sequence[Device]], size: int, ends: bool) -> NDArray[np.int64]:
    """For each stage the least that `together` may be with this stage as a member, and another one at least.

    ``ends``: the first and the last stage are members if there are any.
    """
    count = len(groups)
    if count == 1:
        return np.zeros(1, np.int64)
    if ends:
        return np.full(count, together(cluster, groups, (0, count - 1), size))
    if count > PAIRED:
        links = {node.link for node in cluster.nodes} | ({cluster.network} - {None})
        return np.full(count, min(least_alone(2, link, size) for link in links if link is not None))
    least = np.full((count, count), np.iinfo(np.int64).max)
    for pair in combinations(range(count), 2):
        least[pair] = least[pair[::-1]] = together(cluster, groups, pair, size)
    found: NDArray[np.int64] = least.min(axis=0)
    return found


def alone(ring: Ring, size: int) -> int:
    """Nanoseconds in which a ring sums so many bytes and nothing else."""
    return ring.base + int(ring.times(np.array([size], np.int64))[0])


def least_alone(replicas: int, link: Link, size: int) -> int:
    """Nanoseconds below which no ring of so many replicas or more sums the bytes, however its rounds are rounded.

    Each replica sends (r − 1) / r of the bytes twice, which grows with r, but the pieces of the rounds are rounded up.
    """
    ring = Ring(replicas, link)
    moved = 2 * (replicas - 1) * size // replicas
    return ring.base + max(link.in_collectives.occupancy(moved) - 1, 0)
