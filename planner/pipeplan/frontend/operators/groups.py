"""`Groups`: the groups of axes, between which operators' loops cut them.

::

    fused.out   0 ........ 16 ........ 32 ........ 48       cuts at 16 and 32: three groups
    attention's queries    heads 0, 1                       each a range of the axis; shards of heads are shards
    keys                              heads 0, 1            of each group
    values                                        0, 1

A tensor that several operators read has one placement where it is split along an axis, so all that split it along this
axis agree about the groups: cuts go from each axis to the loops that it is read along, and back.
"""

from collections.abc import Iterable
from itertools import pairwise
from math import gcd
from typing import NamedTuple

Node = tuple[str, int | str]
"""A tensor and the number of an axis, or an operator and a loop."""


class Reading(NamedTuple):
    """A range of an axis of a source that an operator reads along one of its loops, or makes.

    Attributes
    ----------
    source : str
    axis : int
    loop : str
    first, length : int
        The range.
    size : int
        Length of the loop: each index of it is as many of the axis.
    """

    source: str
    axis: int
    loop: str
    first: int
    length: int
    size: int


class Groups:
    """The cuts of all axes and loops."""

    def __init__(self) -> None:
        self._lengths: dict[Node, int] = {}
        self._cuts: dict[Node, frozenset[int]] = {}
        self._links: dict[Node, list[tuple[Node, Reading]]] = {}

    def add(self, operator: str, loop: str, lengths: Iterable[tuple[Reading, int]]) -> bool:
        """Let an operator read along a loop, and return True; unless it cuts axes unevenly, or to pieces.

        ``lengths``: what it reads and makes along the loop, with the lengths of these axes.
        """
        before = dict(self._lengths), dict(self._cuts), {node: list(own) for node, own in self._links.items()}
        for reading, length in lengths:
            axis, own = (reading.source, reading.axis), (operator, loop)
            self._lengths |= {axis: length, own: reading.size}
            self._links.setdefault(axis, []).append((own, reading))
            self._links.setdefault(own, []).append((axis, reading))
            ends = {reading.first, reading.first + reading.length} - {0, length}
            if not (
                self._cut(axis, ends | self._cuts.get(axis, frozenset())) and self._cut(own, self._cuts.get(own, ()))
            ):
                self._lengths, self._cuts, self._links = before
                return False
        return True

    def _cut(self, node: Node, cuts: Iterable[int]) -> bool:
        """Cut an axis or a loop, and all that are linked to it; return whether that can be."""
        waiting = [(node, frozenset(cuts))]
        while waiting:
            node, cuts = waiting.pop()
            self._cuts[node] = self._cuts.get(node, frozenset()) | cuts
            if self._cuts[node] and gcd(*self.lengths(node)) == 1:
                return False
            for other, reading in self._links[node]:
                there = self._there(node, other, reading)
                if there is None:
                    return False
                if not there <= self._cuts.get(other, frozenset()):
                    waiting.append((other, there))
        return True

    def _there(self, node: Node, other: Node, reading: Reading) -> frozenset[int] | None:
        """Return the cuts of a node as those of a linked one; None if one of them divides an index of a loop."""
        step = reading.length // reading.size
        if other == (reading.source, reading.axis):
            return frozenset(reading.first + cut * step for cut in self._cuts[node])
        found = [cut - reading.first for cut in self._cuts[node] if 0 < cut - reading.first < reading.length]
        return None if any(cut % step for cut in found) else frozenset(cut // step for cut in found)

    def lengths(self, node: Node) -> tuple[int, ...]:
        """Return the lengths of the groups of an axis or a loop; none of one that nothing is split along."""
        if node not in self._lengths:
            return ()
        ends = sorted({0, self._lengths[node], *self._cuts.get(node, ())})
        return tuple(end - first for first, end in pairwise(ends))
