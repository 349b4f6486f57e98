"""Shapes without number, of which a search looks at as many as it has time for.

::

    listed already      ShapeNode ShapeNode …       each with its own bound
    still to come       RestNode                    one bound over all of them, which stays until the last one is listed

Shapes of one width come first, as they are few and good; of each lot the most promising ones are looked at at once, so
that there are plans even if the list has no end.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice

from pipeplan.search.prove import Node, Prover, Step, Turn
from pipeplan.search.shapes import ShapeNode
from pipeplan.search.space import Space
from pipeplan.structure import Groups

LOT = 100
"""Shapes that are listed at once,"""
PROMISING = 2
"""and how many of them are looked at before the next lot."""


@dataclass
class EarlyShape(ShapeNode):
    """A shape whose plan is worth having early."""

    @property
    def turn(self) -> Turn:
        """Before all others."""
        return Turn.EARLY


@dataclass
class RestNode(Node):
    """All shapes at a micro-batch size that are not listed yet."""

    bound: int
    space: Space
    size: int
    _shapes: Iterator[tuple[Groups, int]] | None = field(default=None, repr=False)

    @property
    def rank(self) -> tuple[int, ...]:
        """After what is listed."""
        return (3, self.size)

    @property
    def turn(self) -> Turn:
        """Somebody has to find a first plan."""
        return Turn.UNTIL_A_PLAN

    def advance(self, prover: Prover) -> Step[Node]:
        """List some more, unless the time is over."""
        if prover.left <= 0:
            return Step.split([self])
        self._shapes = self._shapes or self._listed()
        lot = sorted(islice(self._shapes, LOT), key=lambda shape: shape[1])
        nodes: list[Node] = []
        for number, (groups, bound) in enumerate(lot):
            kind = EarlyShape if number < PROMISING else ShapeNode
            nodes.append(kind(max(bound, self.bound), self.space, groups, self.size))
        return Step.split([*nodes, self] if len(lot) == LOT else nodes)

    def _listed(self) -> Iterator[tuple[Groups, int]]:
        space = self.space
        if space.job.equal_replicas:
            return space.shapes(self.size)
        alike = Space(space.model, space.cluster, replace(space.job, equal_replicas=True))
        others = (shape for shape in space.shapes(self.size) if len({len(group) for group in shape[0]}) > 1)
        return chain(alike.shapes(self.size), others)
