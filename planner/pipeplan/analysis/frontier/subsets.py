"""Parts of a cluster: a number of devices of each kind, the first of them in the cluster's order.

::

    whole    node 0: a a b    node 1: a b b
    2 a 1 b  node 0: a a b                        1 a 2 b   node 0: a b    node 1: b

Devices keep their nodes, so a part fills one node before it begins the next.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product

from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError

MOST = 2000
"""Most parts to enumerate."""

Counts = tuple[int, ...]
"""Number of devices of each kind, in the order of `kind_counts`."""


@dataclass(frozen=True)
class Part:
    """Devices of a cluster, counted by kind, and their cost."""

    counts: Counts
    cost: float

    @property
    def devices(self) -> int:
        """Number of devices."""
        return sum(self.counts)

    def holds(self, other: "Part") -> bool:
        """True if this part contains all devices of the other one."""
        return all(a >= b for a, b in zip(self.counts, other.counts, strict=True))


def kind_counts(cluster: Cluster) -> tuple[tuple[str, int], ...]:
    """Devices by kind, kinds in order of first appearance."""
    return tuple(Counter(device.kind.name for device in cluster.devices).items())


def parts(cluster: Cluster, prices: Mapping[str, float], levels: int | None = None) -> list[Part]:
    """Every part except the empty one, cheapest first; ``levels`` limits the different device counts of each kind.

    Raises
    ------
    InputError
        If there are more than `MOST`.
    """
    kinds = kind_counts(cluster)
    steps = [_levels(count, levels) for _, count in kinds]
    total = 1
    for step in steps:
        total *= len(step)
    if total - 1 > MOST:
        raise InputError(
            f"{cluster.name} has {total - 1} parts with different numbers of devices, and at most {MOST} are looked "
            "at; ask for fewer points"
        )
    found = [
        Part(counts, _cost(counts, [prices[kind] for kind, _ in kinds])) for counts in product(*steps) if any(counts)
    ]
    return sorted(found, key=lambda part: (part.cost, part.counts))


def _cost(counts: Counts, prices: Sequence[float]) -> float:
    """What devices cost together: exactly for prices as they are written, so that equal costs are equal."""
    total = sum(count * Decimal(str(price)) for count, price in zip(counts, prices, strict=True))
    return int(total) if all(isinstance(price, int) for price in prices) else float(total)


def sub_cluster(cluster: Cluster, part: Part) -> Cluster:
    """The part as a cluster of its own; empty nodes are dropped."""
    left = dict(zip((kind for kind, _ in kind_counts(cluster)), part.counts, strict=True))
    nodes = []
    for node in cluster.nodes:
        kept = []
        for kind in node.kinds:
            if left[kind]:
                left[kind] -= 1
                kept.append(kind)
        if kept:
            nodes.append(replace(node, kinds=tuple(kept)))
    words = " + ".join(f"{n} {kind}" for n, (kind, _) in zip(part.counts, kind_counts(cluster), strict=True) if n)
    return replace(cluster, name=f"{cluster.name} ({words})", nodes=tuple(nodes))


def _levels(count: int, levels: int | None) -> list[int]:
    """0 … count, or ``levels`` of these besides 0, evenly spaced, including the last one."""
    if levels is None or count < levels:
        return list(range(count + 1))
    return sorted({0, *(-(-count * (i + 1) // levels) for i in range(levels))})
