"""Redistributions on a mesh: the cheapest collectives from placements of a tensor to others.

placements have an entry for each axis of the mesh: whole, a part of a sum, or the dimension that is split along it.
Axes that split one dimension are nested in the order of the mesh, the first one outside::

    rows over axes 0 and 1, 2 x 2         0, 0 | 0, 1 | 1, 0 | 1, 1

A collective along an axis changes its entry only. What is split along it changes only where the axis is the innermost
of its dimension, before and after: along axis 0 of the picture, rows are gathered once axis 1 has let go of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count
from math import prod
from typing import Generic, Protocol, Self, TypeVar

from pipeplan.core.cluster import Link
from pipeplan.core.strategies import PARTIAL, WHOLE, Placements
from pipeplan.costs.sharding.exchanges import Exchange, exchange, redistribution_time
from pipeplan.costs.sharding.shapes import Mesh


class Price(Protocol):
    """Costs that are ordered and added up: times, numbers, or pairs of both."""

    def __add__(self, other: Self, /) -> Self: ...

    def __lt__(self, other: Self, /) -> bool: ...


Cost = TypeVar("Cost", bound=Price)


@dataclass(frozen=True)
class Redistributions(Generic[Cost]):
    """Least costs to change the placements of a tensor.

    Attributes
    ----------
    sizes : tuple of int
        Devices along each axis.
    lengths : tuple of int
        Parts of each of the tensor's dimensions, which the devices that split it must divide.
    price : callable
        Cost of one collective: axis, entry before and after, and devices along the other axes that share the tensor
        out.
    nothing : Cost
        Cost of none.
    """

    sizes: tuple[int, ...]
    lengths: tuple[int, ...]
    price: Callable[[int, int, int, int], Cost]
    nothing: Cost
    _found: dict[Placements, dict[Placements, Cost]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _before: dict[Placements, dict[Placements, Placements]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def cost(self, source: Placements, target: Placements) -> Cost | None:
        """Return the least cost from placements to others; None if there is no path.

        What is whole along an axis is a part of a sum for nothing: one device has it.
        """
        sent = _sent(source, target)
        if sent is None:
            return None
        return self.nothing if source == sent else self.costs(source).get(sent)

    def path(self, source: Placements, target: Placements) -> tuple[Placements, ...] | None:
        """Return the placements on the cheapest path, the target included; None if there is none."""
        sent = _sent(source, target)
        if sent is None or self.cost(source, target) is None:
            return None
        found = [sent]
        while found[-1] != source:
            found.append(self._before[source][found[-1]])
        steps = found[-2::-1]
        for axis, placement in enumerate(target):
            if placement != sent[axis]:
                steps.append((*target[: axis + 1], *sent[axis + 1 :]))
        return tuple(steps)

    def costs(self, source: Placements) -> dict[Placements, Cost]:
        """Return the least cost of all placements that can be reached (Dijkstra's algorithm)."""
        if source not in self._found:
            self._found[source] = self._search(source)
        return self._found[source]

    def _search(self, source: Placements) -> dict[Placements, Cost]:
        done: dict[Placements, Cost] = {}
        before = self._before.setdefault(source, {})
        number = count()
        queue = [(self.nothing, next(number), source, source)]
        while queue:
            cost, _, placements, previous = heappop(queue)
            if placements not in done:
                done[placements], before[placements] = cost, previous
                for other, *step in _steps(self.sizes, self.lengths, placements):
                    if other not in done:
                        heappush(queue, (cost + self.price(*step), next(number), other, placements))
        return done

    def fits(self, placements: Placements) -> bool:
        """Return whether the devices that split each dimension divide its parts."""
        return _fits(self.sizes, self.lengths, placements)


def _sent(source: Placements, target: Placements) -> Placements | None:
    """Return the target with the whole in place of parts of sums that are made of it; None if something else is."""
    pairs = tuple(zip(source, target, strict=True))
    if any(after == PARTIAL and before >= 0 for before, after in pairs):
        return None
    return tuple(WHOLE if after == PARTIAL != before else after for before, after in pairs)


def _fits(sizes: tuple[int, ...], lengths: tuple[int, ...], placements: Placements) -> bool:
    return not any(
        parts % prod(n for n, at in zip(sizes, placements, strict=True) if at == dimension)
        for dimension, parts in enumerate(lengths)
    )


@lru_cache(maxsize=2**16)
def _steps(
    sizes: tuple[int, ...], lengths: tuple[int, ...], placements: Placements
) -> tuple[tuple[Placements, int, int, int, int], ...]:
    """The placements that one collective makes of placements, with what determines its price."""
    found = []
    for axis, placement in enumerate(placements):
        if placement >= 0 and placement in placements[axis + 1 :]:
            continue
        others = prod(n for n, at in zip(sizes, placements, strict=True) if at >= 0)
        others //= sizes[axis] if placement >= 0 else 1
        for target in (WHOLE, *range(len(lengths))):
            other = (*placements[:axis], target, *placements[axis + 1 :])
            inner = target == WHOLE or target not in placements[axis + 1 :]
            if target != placement and inner and _fits(sizes, lengths, other):
                found.append((other, axis, placement, target, others))
    return tuple(found)


@lru_cache(maxsize=4096)
def times(
    size: int, sizes: tuple[int, ...], links: tuple[Link, ...], lengths: tuple[int, ...], sharing: tuple[int, ...] = ()
) -> Redistributions[int]:
    """Return the nanoseconds in which a tensor of ``size`` bytes gets other placements; one object for equal tensors.

    ``links`` and ``sharing`` have an placement for each axis (see `pipeplan.costs.sharding.shapes.Mesh`).
    """
    known: dict[tuple[int, Exchange | None, int], int] = {}

    def price(axis: int, source: int, target: int, others: int) -> int:
        key = axis, exchange(source, target), others
        if key not in known:
            found = redistribution_time(
                source, target, -(-size // others), sizes[axis], links[axis], *sharing[axis : axis + 1]
            )
            assert found is not None, "no step makes parts of a sum"
            known[key] = found
        return known[key]

    return Redistributions(sizes, lengths, price, 0)


def path(
    source: Placements, target: Placements, size: int, mesh: Mesh, parts: tuple[int, ...]
) -> tuple[Placements, ...] | None:
    """Return the placements on the fastest path, the target included; None if there is none.

    Parameters
    ----------
    source, target : Placements
    size : int
        Bytes of the whole tensor.
    mesh : Mesh
    parts : tuple of int
        Parts of each of the tensor's dimensions.
    """
    return times(size, mesh.sizes, mesh.links, parts, mesh.sharing).path(source, target)
