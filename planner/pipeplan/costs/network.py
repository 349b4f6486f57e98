"""Costs of sending a tensor between two devices, and of summing gradients over the replicas of a stage."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations, cycle, islice
from math import lcm

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.changed import changed
from pipeplan.core.cluster import Cluster, Device, Link
from pipeplan.core.pipeline import Transfer
from pipeplan.costs.collectives import Collective, all_reduce, alone

PAIRED = 16
"""Largest number of stages for which the all-reduce time of every pair of stages is computed."""


def transfer(cluster: Cluster, source: Device, target: Device, size: int) -> Transfer:
    """Return the transfer of ``size`` bytes from ``source`` to ``target``.

    Inside a node every ordered pair of devices has its own link resource. Between nodes a tensor uses the sending
    node's card outwards and the receiving node's card inwards; all devices of a node share its card. A transfer of 0
    bytes still takes the latency, because it signals the receiver to continue.
    """
    if source.index == target.index:
        return Transfer()
    link = cluster.link(source, target)
    return Transfer(size, link.occupancy(size), link.latency, _resources(source, target))


def _resources(source: Device, target: Device) -> tuple[str, ...]:
    """Return the link resources that a tensor from a device to another one keeps busy."""
    within = source.node == target.node
    return _own_link(source.index, target.index) if within else _cards(source.node, target.node)


def meetings(source: Sequence[Device], target: Sequence[Device]) -> Iterator[tuple[Device, Device]]:
    """Yield the replicas of two neighbours that exchange each micro-batch, in turn, until the pairs repeat."""
    return islice(zip(cycle(source), cycle(target), strict=False), lcm(len(source), len(target)))


def transfers(cluster: Cluster, source: Sequence[Device], target: Sequence[Device], size: int) -> tuple[Transfer, ...]:
    """Return the transfers of `meetings`; those between the same two nodes are one object."""
    between: dict[tuple[int, int], Transfer] = {}
    found = []
    for sender, receiver in meetings(source, target):
        nodes = sender.node, receiver.node
        way = between.get(nodes)
        if way is None:
            way = transfer(cluster, sender, receiver, size)
            if sender.node != receiver.node:
                between[nodes] = way
        found.append(way)
    return tuple(found)


def links_between(cluster: Cluster, source: Sequence[Device], target: Sequence[Device]) -> set[Link]:
    """Return the links between the replicas that exchange some micro-batch."""
    nodes = {(sender.node, receiver.node): (sender, receiver) for sender, receiver in meetings(source, target)}
    return {cluster.link(*ends) for ends in nodes.values()}


def busiest(source: Sequence[Device], target: Sequence[Device]) -> tuple[int, tuple[int, ...]]:
    """Return the number of micro-batches after which pairs of replicas repeat, and those on the busiest resource."""
    users: dict[str, list[int]] = {}
    for m, (sender, receiver) in enumerate(meetings(source, target)):
        for resource in _resources(sender, receiver) if sender.index != receiver.index else ():
            users.setdefault(resource, []).append(m)
    most: list[int] = max(users.values(), key=lambda own: len(own), default=[0])
    return lcm(len(source), len(target)), tuple(most)


@lru_cache(maxsize=2**16)
def _own_link(source: int, target: int) -> tuple[str, ...]:
    return (f"d{source} to d{target}",)


@lru_cache(maxsize=2**16)
def _cards(source: int, target: int) -> tuple[str, ...]:
    return f"node {source} card out", f"node {target} card in"


def rings(cluster: Cluster, groups: Sequence[Sequence[Device]]) -> tuple[Collective, ...]:
    """Return the ring of each stage, given the devices of all of them.

    Stages on the same devices sum one after the other, so their rings use a card once.
    """
    kinds, nodes = [group[0].kind for group in groups], [_nodes(group) for group in groups]
    users = _users(groups)
    return tuple(
        all_reduce(len(group), _slowest(cluster, own, cluster.between(kind, kind), max(users[n] for n in own)))
        for group, kind, own in zip(groups, kinds, nodes, strict=True)
    )


def _nodes(group: Sequence[Device]) -> Counter[int]:
    """Return the number of replicas in each node."""
    return Counter(device.node for device in group)


def _users(groups: Sequence[Sequence[Device]], members: Sequence[int] = ()) -> Counter[int]:
    """Return the rings that use each node's card, without those on devices of the stages ``members``."""
    apart = {frozenset(device.index for device in group): _nodes(group) for group in groups}
    for s in members:
        apart.pop(frozenset(device.index for device in groups[s]), None)
    return Counter(node for own in apart.values() if len(own) > 1 for node in own)


def _slowest(cluster: Cluster, nodes: Counter[int], network: Link | None, rings_on_a_card: int) -> Link:
    """Return the slowest link of a ring with so many replicas in each node."""
    if len(nodes) == 1:
        return cluster.nodes[next(iter(nodes))].link
    assert network is not None
    inside = (cluster.nodes[node].link for node, replicas in sorted(nodes.items()) if replicas > 1)
    return slowest(shared(network, rings_on_a_card), *inside)


def slowest(*links: Link) -> Link:
    """Return the link that collectives of large tensors keep busy longest; of equal ones that of the longest latency.

    The first one of those that are alike in both.
    """
    return max(links, key=lambda link: (link.in_collectives.occupancy(2**40), link.latency))


def rings_over_nodes(replicas: int, network: Link, inside: Link) -> list[Collective]:
    """Return the rings that replicas in several nodes may form: each ring of theirs is one of them, or slower.

    Where the network is faster, the links inside are the slowest of a ring with two replicas in a node.
    """
    links = [network] if slowest(network, inside) == network else [network, inside]
    return [all_reduce(replicas, link) for link in links]


def shared(link: Link, users: int) -> Link:
    """Return a link with the bandwidth that each of ``users`` has if all of them use it all the time."""
    return link if link.bandwidth is None else changed(link, bandwidth=max(link.bandwidth // users, 1))


def joint_ring(cluster: Cluster, groups: Sequence[Sequence[Device]], members: Sequence[int]) -> Collective:
    """Return the ring through all replicas of the stages ``members``, given the devices of all stages.

    Between nodes it shares the cards with the rings of other devices; those on its own devices wait for it.
    """
    own = sum((_nodes(groups[s]) for s in members), Counter[int]())
    others = _users(groups, members)
    replicas = sum(len(groups[s]) for s in members)
    largest = max((groups[s][0].kind for s in members), key=lambda kind: kind.at_card)
    network = cluster.between(largest, largest)
    return all_reduce(replicas, _slowest(cluster, own, network, 1 + max(others[node] for node in own)))


def together(cluster: Cluster, groups: Sequence[Sequence[Device]], members: Sequence[int], size: int) -> int:
    """Return the nanoseconds in which all replicas of the stages ``members`` sum ``size`` bytes.

    Nothing is summed of one stage, or of no bytes: then it is 0.

    Rounding may make a ring of more replicas faster; the result is at least the time of any two of the stages.
    """
    if len(members) < 2 or not size:
        return 0
    rows = [members, *(combinations(members, 2) if len(members) > 2 else ())]
    return max(alone(joint_ring(cluster, groups, row), size) for row in rows)


def least_together(cluster: Cluster, groups: Sequence[Sequence[Device]], size: int, ends: bool) -> NDArray[np.int64]:
    """Return for each stage the least `together` over all groups of this stage and at least one other.

    ``ends``: every group contains the first and the last stage.
    """
    count = len(groups)
    if count == 1 or not size:
        return np.zeros(count, np.int64)
    if ends:
        return np.full(count, together(cluster, groups, (0, count - 1), size))
    if count > PAIRED:  # a lower bound instead: a ring of two replicas over the fastest link
        links = {node.link for node in cluster.nodes} | ({cluster.network} - {None})
        return np.full(count, min(all_reduce(2, link).lower_bound(size) for link in links if link is not None))
    least = np.full((count, count), np.iinfo(np.int64).max)
    for pair in combinations(range(count), 2):
        least[pair] = least[pair[::-1]] = together(cluster, groups, pair, size)
    found: NDArray[np.int64] = least.min(axis=0)
    return found
