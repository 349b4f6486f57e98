"""Leaf-spine fabric: its ports, what may wait at them, and the paths between hosts.

::

    host ── card ──▶ leaf ── up ──▶ spine ── down ──▶ leaf ── last ──▶ host
"""

from dataclasses import dataclass
from functools import cached_property

UNLIMITED = 2**62
"""Bytes that may wait at a card: nothing is dropped there, as windows hold senders back."""
MASK = 2**64 - 1


def mixed(seed: int, a: int, b: int) -> int:
    """Return 31 pseudo-random bits of three numbers (finaliser of SplitMix64: Steele et al., OOPSLA 2014)."""
    x = (seed * 0x9E3779B97F4A7C15 + a * 0xD1B54A32D192ED03 + b * 0x8CB92BA72F3D8DD7) & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x >> 33


@dataclass(frozen=True)
class Fabric:
    """``leaves`` switches with so many ``hosts`` each, joined by ``spines``.

    All links have one ``rate``, in bytes per second, and a bit travels ``delay`` nanoseconds along each; ``packet`` is
    the largest one, in bytes. Class 0 is served first. A switch drops a packet if with it more bytes would wait at the
    port than ``thresholds`` has for its class; what is in transmission does not wait. ``sprayed``: each packet takes a
    path of its own, drawn by a hash; otherwise each pair of hosts has one.
    """

    leaves: int
    hosts: int
    spines: int
    rate: int
    delay: int
    packet: int
    thresholds: tuple[int, ...]
    sprayed: bool = False

    @property
    def size(self) -> int:
        """Number of hosts."""
        return self.leaves * self.hosts

    @property
    def back(self) -> int:
        """Nanoseconds that a header takes through the fabric ahead of all packets, as acknowledgements do."""
        return 4 * self.delay

    @property
    def round_trip(self) -> int:
        """Nanoseconds from sending a packet over idle links to its acknowledgement."""
        return 4 * (self.wire(self.packet) + self.delay) + self.back

    @cached_property
    def window(self) -> int:
        """Number of packets on the way that keep an idle path busy."""
        return -(-self.round_trip // self.wire(self.packet))

    def wire(self, size: int) -> int:
        """Return the nanoseconds in which so many bytes leave a port."""
        return -(-size * 10**9 // self.rate)

    def limits(self) -> list[tuple[int, ...]]:
        """Return the thresholds of every port: those of cards, last links, links up and links down."""
        switches = self.size + 2 * self.leaves * self.spines
        return [(UNLIMITED,) * len(self.thresholds)] * self.size + [self.thresholds] * switches

    def paths(self, source: int, target: int) -> list[tuple[int, ...]]:
        """Return the ports along each path between two hosts."""
        here, there, last = source // self.hosts, target // self.hosts, self.size + target
        if here == there:
            return [(source, last)]
        up = 2 * self.size
        down = up + self.leaves * self.spines
        ways = [(up + here * self.spines + s, down + s * self.leaves + there) for s in range(self.spines)]
        return [(source, *way, last) for way in ways]
