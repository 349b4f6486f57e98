"""The least of what depends on where a stage's replicas lie: rings, links to neighbours, and tables of their times."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeplan.core.cluster import DeviceKind, Link
from pipeplan.costs.chain import Array
from pipeplan.costs.collectives import Collective, all_reduce
from pipeplan.costs.network import rings_over_nodes
from pipeplan.costs.pricing import Prices
from pipeplan.search.space.device_groups import DeviceClass


def possible_rings(devices: DeviceClass, network: Link | None, replicas: int) -> list[Collective]:
    """Return the rings that so many replicas may form; the fastest of them is a lower bound."""
    inside = [all_reduce(replicas, devices.link)]
    if network is None or len(devices.nodes) == 1:
        return inside
    within = inside if replicas <= devices.per_node else []
    return within + rings_over_nodes(replicas, network, devices.link)


def possible_links(before: DeviceClass, behind: DeviceClass, network: Link | None) -> list[Link]:
    """Return the links that may join devices of two classes."""
    inside = [before.link] if before.nodes & behind.nodes else []
    return inside + ([network] if network is not None and len(before.nodes | behind.nodes) > 1 else [])


def least_passes(prices: Prices, each: DeviceClass, size: int, among: Sequence[Collective]) -> tuple[Array, Array]:
    """Nanoseconds of each layer's forward and backward on a class of devices, the least over some rings."""
    table = prices.table(each.kind, size)
    found = [prices.sync.passes(each.kind, size, ring) for ring in among]
    least = [own.least for own in found if own is not None] or [(table.forward, table.backward)]
    forward, backward = (np.minimum.reduce(rows) for rows in zip(*least, strict=True))
    return forward, backward


@dataclass(frozen=True)
class LeastTables:
    """Least nanoseconds and bytes of layers by kind of device k and number of replicas w.

    Attributes
    ----------
    update, reduce, gather, gather_hides, resident : array, shape (kinds, widths, n)
        ``gather_hides`` is the most that hides gathers; see `Synchronization.first_gathers`.
    reduce_base, gather_base : array, shape (kinds, widths)
    """

    update: Array
    reduce: Array
    reduce_base: Array
    gather: Array
    gather_base: Array
    gather_hides: Array
    resident: Array

    @classmethod
    def of(
        cls,
        prices: Prices,
        kinds: Sequence[DeviceKind],
        size: int,
        rings: Sequence[Sequence[Sequence[Collective]]],
        like: "LeastTables | None" = None,
    ) -> "LeastTables":
        """The least over ``rings[k][w]``, which all have as many replicas, at a micro-batch size.

        ``like``: the tables of the same rings at another size, of which most is the same.
        """
        sync, rows = prices.sync, list(zip(kinds, rings, strict=True))
        update = np.stack([[sync.least_update(kind, size, among) for among in row] for kind, row in rows])
        if like is not None and not like.gather.any():
            return replace(like, update=update)
        gathers = [[sync.least_gathers(kind, size, among) for among in row] for kind, row in rows]
        gather = np.stack([[gather for gather, _ in row] for row in gathers])
        gather_hides = np.stack([[hides for _, hides in row] for row in gathers])
        if like is not None:
            return replace(like, update=update, gather=gather, gather_hides=gather_hides)
        return cls(
            update=update,
            reduce=np.stack([[sync.least_reduce(kind, among) for among in row] for kind, row in rows]),
            reduce_base=np.array([[min(map(sync.reduce_base, among)) for among in row] for row in rings], np.int64),
            gather=gather,
            gather_base=np.array([[min(map(sync.gather_base, among)) for among in row] for row in rings], np.int64),
            gather_hides=gather_hides,
            resident=np.stack([[prices.kept.resident(kind, among[0].replicas) for among in row] for kind, row in rows]),
        )
