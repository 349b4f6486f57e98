"""All-reduce collectives: times of summing gradients over the replicas of a stage.

Gradients are priced with `all_reduce`. Another algorithm is a class like `Ring`, in a file of its own, named there.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.cluster import Link


class Collective(Protocol):
    """An all-reduce over ``replicas`` devices, whose slowest connection is ``link``. All times are nanoseconds."""

    @property
    def replicas(self) -> int:
        """Number of devices."""
        ...

    @property
    def link(self) -> Link:
        """The slowest link, or the share of it that the collective has."""
        ...

    @property
    def base(self) -> int:
        """Time that does not depend on the bytes; 0 for one replica."""
        ...

    def times(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the time that each of these numbers of bytes adds; positive for positive sizes and 2 replicas."""
        ...

    @property
    def one_way(self) -> "Collective":
        """The reduce-scatter with which it begins; the all-gather behind takes as long."""
        ...

    def lower_bound(self, size: int) -> int:
        """Return a lower bound on the time of ``size`` bytes over at least as many replicas, however they are cut."""
        ...


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring all-reduce over the replicas of a stage: 2 (r − 1) rounds, each of which moves 1/r of the bytes.

    In the first r − 1 rounds each replica gets the sums of its share, in the others those of all shares. The slowest
    link determines the time of a round. Rings that span nodes share the nodes' cards all the time (Patarasuk and Yuan,
    2009, for the ring; the constant share of a card is our assumption). A round runs at the link's bandwidth, or at the
    share of it that was measured for collectives.
    """

    replicas: int
    link: Link
    ways: int = 2

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return self.ways * (self.replicas - 1)

    @property
    def base(self) -> int:
        """Nanoseconds of latency, summed over all rounds."""
        return self.rounds * self.link.latency

    @property
    def one_way(self) -> "Ring":
        """The first half of the rounds, a reduce-scatter; the second is an all-gather."""
        return replace(self, ways=1)

    def times(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the nanoseconds that each of these numbers of bytes adds."""
        of_size = {size: self._time(size) for size in set(sizes.tolist())}
        return np.array([of_size[size] for size in sizes.tolist()], np.int64)

    def _time(self, size: int) -> int:
        """Return the nanoseconds of all rounds; at least 1 for a positive size, which marks a stage that reduces."""
        each = self.link.in_collectives.occupancy(-(-size // self.replicas))
        return max(self.rounds * each, 1) if size and self.rounds else 0

    def lower_bound(self, size: int) -> int:
        """Return a lower bound in nanoseconds on the all-reduce of ``size`` bytes by at least as many replicas.

        Each replica sends (r − 1) / r of the bytes one way, which grows with r. The bound holds for any rounding of the
        pieces of the rounds, which are rounded up.
        """
        moved = self.rounds * size // self.replicas
        return self.base + max(self.link.in_collectives.occupancy(moved) - 1, 0)


all_reduce: Callable[[int, Link], Collective] = Ring
"""The collective of ``(replicas, link)`` that sums gradients."""


def alone(collective: Collective, size: int) -> int:
    """Return the nanoseconds in which a collective sums ``size`` bytes and nothing else."""
    return collective.base + int(collective.times(np.array([size], np.int64))[0])


def lost(times: NDArray[np.int64], speed: float) -> NDArray[np.int64]:
    """Return the nanoseconds of computation that is not done because collectives of these times run beside it.

    ``speed``: that of computation beside a collective, relative to its speed alone. At 0 nothing runs beside them, so
    nothing is lost either.
    """
    if not 0 < speed < 1:
        return np.zeros_like(times)
    kept, whole = Fraction(str(speed)).as_integer_ratio()
    return np.array([time * (whole - kept) // whole for time in times.tolist()], np.int64)
