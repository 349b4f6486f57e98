"""Redistributions on a mesh: the cheapest collectives from one layout of a tensor to another.

A layout has an entry for each axis of the mesh: whole, a part of a sum, or the dimension that is split along it. Axes
that split one dimension are nested in the order of the mesh, the first one outside::

    rows over axes 0 and 1, 2 x 2         0, 0 | 0, 1 | 1, 0 | 1, 1

A collective along an axis changes its entry only. What is split along it changes only where the axis is the innermost
of its dimension, before and after: along axis 0 of the picture, rows are gathered once axis 1 has let go of them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush
from itertools import count
from math import prod
from typing import Generic, TypeVar

from pipeplan.core.cluster import Link
from pipeplan.costs.teams.signatures import PARTIAL, WHOLE, Exchange, exchange, redistribution

Layout = tuple[int, ...]

Cost = TypeVar("Cost", int, Fraction)


@dataclass(frozen=True)
class Redistributions(Generic[Cost]):
    """Least costs to change the layout of a tensor.

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
    _found: dict[Layout, dict[Layout, Cost]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def cost(self, source: Layout, target: Layout) -> Cost | None:
        """Return the least cost from one layout to another; None if there is no way.

        What is whole along an axis is a part of a sum for nothing: one device has it.
        """
        pairs = tuple(zip(source, target, strict=True))
        if any(after == PARTIAL and before >= 0 for before, after in pairs):
            return None
        way = tuple(WHOLE if after == PARTIAL != before else after for before, after in pairs)
        return self.nothing if source == way else self.costs(source).get(way)

    def costs(self, source: Layout) -> dict[Layout, Cost]:
        """Return the least cost of every layout that can be reached (Dijkstra's algorithm)."""
        if source not in self._found:
            self._found[source] = self._search(source)
        return self._found[source]

    def _search(self, source: Layout) -> dict[Layout, Cost]:
        done: dict[Layout, Cost] = {}
        number = count()
        queue = [(self.nothing, next(number), source)]
        while queue:
            cost, _, layout = heappop(queue)
            if layout not in done:
                done[layout] = cost
                for other, step in self._steps(layout):
                    if other not in done:
                        heappush(queue, (cost + step, next(number), other))
        return done

    def _steps(self, layout: Layout) -> Iterator[tuple[Layout, Cost]]:
        axis: int
        for axis, entry in enumerate(layout):
            if entry >= 0 and entry in layout[axis + 1 :]:
                continue
            others = prod(n for n, at in zip(self.sizes, layout, strict=True) if at >= 0)
            others //= self.sizes[axis] if entry >= 0 else 1
            for target in (WHOLE, *range(len(self.lengths))):
                other = (*layout[:axis], target, *layout[axis + 1 :])
                if target != entry and self.fits(other) and (target == WHOLE or target not in layout[axis + 1 :]):
                    yield other, self.price(axis, entry, target, others)

    def fits(self, layout: Layout) -> bool:
        """Return whether the devices that split each dimension divide its parts."""
        return not any(
            parts % prod(n for n, at in zip(self.sizes, layout, strict=True) if at == dimension)
            for dimension, parts in enumerate(self.lengths)
        )


def times(size: int, sizes: tuple[int, ...], links: Sequence[Link], lengths: tuple[int, ...]) -> Redistributions[int]:
    """Return the nanoseconds in which a tensor of ``size`` bytes gets other layouts; ``links``: one for each axis."""
    known: dict[tuple[int, Exchange | None, int], int] = {}

    def price(axis: int, source: int, target: int, others: int) -> int:
        key = axis, exchange(source, target), others
        if key not in known:
            found = redistribution(source, target, -(-size // others), sizes[axis], links[axis])
            assert found is not None, "no step makes parts of a sum"
            known[key] = found
        return known[key]

    return Redistributions(sizes, lengths, price, 0)
