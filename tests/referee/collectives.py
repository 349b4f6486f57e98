"""All-reduces that are plugged into the planner, beside its ring; `rings` prices them by itself."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.cluster import Link


@dataclass(frozen=True)
class Halving:
    """Recursive halving, then doubling: each half has ⌈log2 r⌉ rounds, in which (r − 1) / r of the bytes are sent."""

    name: ClassVar[str] = "halving"
    replicas: int
    link: Link
    halves: int = 2

    @property
    def base(self) -> int:
        """Latency of all rounds."""
        return self.halves * (self.replicas - 1).bit_length() * self.link.latency

    @property
    def one_way(self) -> "Halving":
        """The first half."""
        return replace(self, halves=1)

    def sent(self, size: int) -> int:
        """Bytes of a replica in each half."""
        return -(-size * (self.replicas - 1) // self.replicas)

    def times(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Nanoseconds without latency."""
        link, some = self.link.in_collectives, self.replicas > 1
        took = [max(self.halves * link.occupancy(self.sent(size)), 1) * bool(size and some) for size in sizes.tolist()]
        return np.array(took, np.int64)

    def lower_bound(self, size: int) -> int:
        """More replicas send more, in more rounds; bytes that are cut into parts are rounded up more often."""
        return self.base + self.halves * self.link.in_collectives.occupancy(self.sent(size))


class Tree(Halving):
    """Up a tree, and down again: as many rounds, but all bytes are sent in each half."""

    name: ClassVar[str] = "tree"

    def sent(self, size: int) -> int:
        """Bytes of a replica in each half."""
        return size
