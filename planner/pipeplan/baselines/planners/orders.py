"""Orders of unlike devices along a pipeline, without those that give equal plans."""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby
from math import factorial, prod
from typing import TypeVar

from pipeplan.core.cluster import Cluster, Device

Row = tuple[int, ...]
Label = TypeVar("Label", bound=Hashable)

MOST = 100
"""Largest number of orders that are enumerated; beyond it, like devices of a node stay together."""


def device_orders(cluster: Cluster, most: int = MOST) -> list[tuple[Device, ...]]:
    """Return every order of unlike devices, the cluster's own first.

    Devices are alike if they are of one kind and in one node. Where all devices are of one kind, or there are more than
    ``most`` orders, like devices stay together. Then only the order of these groups varies, and equal groups are not
    exchanged.
    """
    devices = cluster.devices
    labels: list[tuple[Hashable, ...]] = [(device.kind.name, device.node) for device in devices]
    if len({kind for kind, _ in labels}) > 1 and distinct(labels) <= most:
        groups: list[Row] = [(device.index,) for device in devices]
    else:
        groups = [tuple(d.index for d in own) for _, own in groupby(devices, key=lambda d: labels[d.index])]
        labels = [(labels[group[0]][0], len(group), _look(cluster, group)) for group in groups]
        if len(set(labels)) == 1 or distinct(labels) > most:
            return [devices]
    own = tuple(device.index for device in devices)
    rows = [sum(_deal(order, groups, labels), ()) for order in orders_of(labels)]
    return [tuple(devices[index] for index in row) for row in dict.fromkeys([own, *rows])]


def _look(cluster: Cluster, group: Row) -> int:
    """Return the first node equal to this group's node: equal groups of equal nodes are interchangeable."""
    return cluster.nodes.index(cluster.nodes[cluster.devices[group[0]].node])


def distinct(labels: Sequence[Label]) -> int:
    """Return the number of distinct orders of the labels: the multinomial coefficient."""
    return factorial(len(labels)) // prod(factorial(count) for count in Counter(labels).values())


def orders_of(labels: Sequence[Label]) -> Iterator[tuple[Label, ...]]:
    """Yield every distinct order of the labels once, as a dictionary would, by the labels' first places."""
    known = list(dict.fromkeys(labels))
    row = sorted(known.index(label) for label in labels)
    while True:
        yield tuple(known[rank] for rank in row)
        rising = next((i for i in range(len(row) - 2, -1, -1) if row[i] < row[i + 1]), None)
        if rising is None:
            return
        larger = next(i for i in range(len(row) - 1, rising, -1) if row[i] > row[rising])
        row[rising], row[larger] = row[larger], row[rising]
        row[rising + 1 :] = row[:rising:-1]


def _deal(order: Sequence[Label], groups: Sequence[Row], labels: Sequence[Label]) -> list[Row]:
    """Return the groups in the given order of labels; groups of equal label keep their order."""
    piles = {
        label: iter([g for g, own in zip(groups, labels, strict=True) if own == label])
        for label in dict.fromkeys(labels)
    }
    return [next(piles[label]) for label in order]
