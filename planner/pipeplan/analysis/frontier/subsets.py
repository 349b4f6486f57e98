"""Parts of a cluster: so many devices of each kind, the first of them in the cluster's order.

::

    whole    node 0: a a b    node 1: a b b
    2 a 1 b  node 0: a a b                        1 a 2 b   node 0: a b    node 1: b

Devices keep their nodes, so a part fills one node before it begins the next.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError

MOST = 2000
"""Most parts that are looked at one by one."""

Counts = tuple[int, ...]
"""How many of each kind, in the order of `kind_counts`."""


@dataclass(frozen=True)
class Part:
    """Some of a cluster's devices, and what they cost."""

    counts: Counts
    cost: float

    @property
    def devices(self) -> int:
        """How many."""
        return sum(self.counts)

    def holds(self, other: "Part") -> bool:
        """Whether the other part's devices are all here."""
        return all(a >= b for a, b in zip(self.counts, other.counts, strict=True))


def kind_counts(cluster: Cluster) -> tuple[tuple[str, int], ...]:
    """Devices by kind, kinds in order of first appearance."""
    return tuple(Counter(device.kind.name for device in cluster.devices).items())


def parts(cluster: Cluster, prices: Mapping[str, float], levels: int | None = None) -> list[Part]:
    """Every part but the empty one, cheapest first; with ``levels``, at most so many different numbers of each kind.

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
        Part(counts, sum(count * prices[kind] for count, (kind, _) in zip(counts, kinds, strict=True)))
        for counts in product(*steps)
        if any(counts)
    ]
    return sorted(found, key=lambda part: (part.cost, part.counts))


def sub_cluster(cluster: Cluster, part: Part) -> Cluster:
    """The part as a cluster of its own; nodes of which nothing is left are dropped."""
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
    """0 … count, or so many of them, evenly spaced, the last one kept."""
    if levels is None or count < levels:
        return list(range(count + 1))
    return sorted({0, *(-(-count * (i + 1) // levels) for i in range(levels))})
