"""All-reduce collectives: times of summing gradients over the replicas of a stage.

Gradients are priced with `all_reduce`, by the algorithm that the slowest link of a group names. Another algorithm is a
class like `Ring`: one of `OWN`, or of another package's entry point ``pipeplan.collectives``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.changed import changed
from pipeplan.core.cluster import Link
from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown
from pipeplan.core.plug_ins import Registry, refuse
from pipeplan.core.wording import hint
from pipeplan.costs.occupancy import occupancies


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

    name: ClassVar[str] = "ring"
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
        return changed(self, ways=1)

    def times(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the nanoseconds that each of these numbers of bytes adds; at least 1 for a positive size."""
        each = self.rounds * occupancies(self.link.in_collectives, -(-sizes // self.replicas))
        found: NDArray[np.int64] = np.maximum(each, (sizes > 0) & (self.rounds > 0))
        return found

    def lower_bound(self, size: int) -> int:
        """Return a lower bound in nanoseconds on the all-reduce of ``size`` bytes by at least as many replicas.

        Each replica sends (r − 1) / r of the bytes one way, which grows with r. The bound holds for any rounding of the
        pieces of the rounds, which are rounded up.
        """
        moved = self.rounds * size // self.replicas
        return self.base + max(self.link.in_collectives.occupancy(moved) - 1, 0)


OWN: tuple[Callable[[int, Link], Collective], ...] = (Ring,)
"""Pipeplan's own algorithms."""
TRIED = 10**6
"""Bytes with which an algorithm of another package is tried."""


def _adapted(found: Any, name: str, _: str) -> Callable[[int, Link], Collective]:
    """Return an algorithm whose bounds hold over 2 to 9 replicas, as far as that can be tried."""
    if not callable(found):
        raise InputError(f"it is no class of (replicas, link) with the members of Collective: {shown(found)}")
    tried: list[Collective] = [found(replicas, Link(10**9, 1000, collective=name)) for replicas in range(2, 10)]
    takes = [alone(each, TRIED) for each in tried]
    for number, each in enumerate(tried):
        bound, least = each.lower_bound(TRIED), min(takes[number:])
        if bound > least:
            raise InputError(
                f"lower_bound of {TRIED} bytes over {number + 2} replicas is {bound} ns, and {least} ns are enough"
            )
        times = each.times(np.array([1, TRIED, 2 * TRIED], np.int64)).tolist()
        if times[0] < 1 or any(later < earlier for earlier, later in pairwise(times)):
            raise InputError(
                f"times of 1, {TRIED} and twice as many bytes are {times}; they are positive and never fall"
            )
        if each.one_way.base > each.base:
            raise InputError(
                f"one_way of {number + 2} replicas has a base of {each.one_way.base} ns, more than {each.base}"
            )
    made: Callable[[int, Link], Collective] = found
    return made


def _broken(_: str, why: str) -> Callable[[int, Link], Collective]:
    return partial(refuse, why=why)


COLLECTIVES: Registry[Callable[[int, Link], Collective]] = Registry("pipeplan.collectives", OWN, _adapted, _broken)
"""Algorithms by the names that links use."""


def all_reduce(replicas: int, link: Link) -> Collective:
    """Return the collective that sums gradients over so many replicas, whose slowest link this is."""
    if link.collective == Ring.name:
        return Ring(replicas, link)
    if link.collective not in COLLECTIVES:
        known = ", ".join(COLLECTIVES)
        raise InputError(
            f"collective {link.collective!r} of a link is not known{hint(link.collective, COLLECTIVES)}; known: {known}"
        )
    return COLLECTIVES[link.collective](replicas, link)


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
