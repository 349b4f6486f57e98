"""`PlannedCalls`: how a layer on a mesh is called, found at the first forward of a shape, and the same in all others.

Nothing here refers to a tensor that a forward makes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from pipeplan.core.operators import Operator
from pipeplan.core.strategies import UNSPLIT, Placements, Strategy
from pipeplan.costs.sharding.layer_redistributions import PlannedLayer, Redistribution
from pipeplan.frontend.operators.program import Pieces, Program, Step
from pipeplan.frontend.operators.record import Call
from pipeplan.frontend.operators.sources import View
from pipeplan_executor.sharding.mesh import calls
from pipeplan_executor.sharding.mesh.moves import MeshAxes, Move, divided
from pipeplan_executor.sharding.mesh.shapes import own_lengths, own_shape, shapes_of
from pipeplan_executor.sharding.mesh.weights import MeshWeight

Taken = Callable[[Tensor, Placements], Tensor]
"""Takes a view of a part of its source, which has placements."""


@dataclass(frozen=True)
class Handle:
    """A tensor of a program that runs: a view of a source, or a constant, which every process has as a whole."""

    view: View | None = None
    take: Taken | None = None
    constant: Tensor | None = None


@dataclass(frozen=True)
class Narrowing:
    """A dimension of which an operator works on a part, where it got more of it.

    Attributes
    ----------
    dimension : int
    lengths : tuple of int
        Of its pieces.
    cuts : tuple of (int, int, int)
        Which piece is divided, into how many parts, and the number of this process's part; one after the other.
    slice : tuple of (int, int, int)
        Before that: a piece of which a slice's tokens are taken, the first of them, and how many.
    """

    dimension: int
    lengths: tuple[int, ...]
    cuts: tuple[tuple[int, int, int], ...]
    slice: tuple[int, int, int] | None = None

    def of(self, part: Tensor) -> Tensor:
        """Return the part on which this process works."""
        part = part.unflatten(self.dimension, self.lengths)
        if self.slice is not None:
            piece, first, count = self.slice
            part = part.narrow(self.dimension + piece, first, count)
        for piece, count, place in self.cuts:
            part = divided(part, self.dimension + piece, count)[place]
        return part.flatten(self.dimension, self.dimension + len(self.lengths) - 1)


class PlannedCalls:
    """The calls of a layer on a mesh.

    Parameters
    ----------
    program : Program
    plan : PlannedLayer
    weights : mapping of str to MeshWeight
    axes : MeshAxes

    Attributes
    ----------
    of_operator : dict of str to list of MeshWeight
    strategy : callable
        The strategy of an operator, by its name.
    reading : callable
        How an operator, by its name, gets what it reads of a source.
    making : callable
        How what an operator makes, by its name, gets the placements in which it is held, and the lengths of its part.
    adds : callable
        Whether this process is the first of those that make parts of a sum, of an operator by its name.
    """

    def __init__(self, program: Program, plan: PlannedLayer, weights: Mapping[str, MeshWeight], axes: MeshAxes) -> None:
        self._plan, self._axes = plan, axes
        self._shapes = shapes_of(program)
        self.of_operator: dict[str, list[MeshWeight]] = {}
        for weight in weights.values():
            self.of_operator.setdefault(weight.operator, []).append(weight)
        self._roots: dict[int, Handle] = {}  # by the ids of views, and of steps, which the program keeps
        self._views: dict[int, dict[int, Handle]] = {}
        self._lengths: dict[tuple[int, Placements], tuple[int, ...]] = {}
        self._narrowings: dict[tuple[int, int, tuple[str, ...], Strategy], tuple[Narrowing, ...]] = {}
        self.strategy = cache(self._strategy)
        self.reading = cache(self._reading)
        self.making = cache(self._making)
        self.adds = cache(self._adds)

    def move(self, name: str, how: Redistribution) -> Move:
        """Return a redistribution of a tensor."""
        return Move(how, self._shapes[name], self._axes)

    def lengths(self, name: str, placements: Placements) -> tuple[int, ...]:
        """Return the lengths of this process's part of a tensor."""
        return own_lengths(self._shapes[name], placements, self._axes)

    def root(self, view: View | None) -> Handle:
        """Return the handle of a view of a source that is held."""
        assert view is not None
        if id(view) not in self._roots:
            self._roots[id(view)] = Handle(view, partial(self._source, view))
        return self._roots[id(view)]

    def views(self, step: Step, before: Taken) -> dict[int, Handle]:
        """Return the handles of what a step makes that only views a tensor; ``before`` takes that."""
        if id(step) not in self._views:
            assert step.call is not None
            self._views[id(step)] = {
                id(tensor): Handle(view, partial(self._view, step.call, number, view, before))
                for number, (tensor, view) in enumerate(zip(step.call.made, step.views, strict=True))
                if view is not None
            }
        return self._views[id(step)]

    def _source(self, view: View, part: Tensor, placements: Placements) -> Tensor:
        return calls.reshaped(part, self._shape(view, placements))

    def _view(self, call: Call, number: int, view: View, before: Taken, part: Tensor, placements: Placements) -> Tensor:
        return calls.view(call, number, before(part, placements), self._shape(view, placements))

    def _shape(self, view: View, placements: Placements) -> tuple[int, ...]:
        key = id(view), placements
        if key not in self._lengths:
            self._lengths[key] = own_shape(view, self._shapes[view.source.name], placements, self._axes)
        return self._lengths[key]

    def narrowed(
        self, operator: Operator, step: Step, tensor: Tensor, row: tuple[str, ...], strategy: Strategy, part: Tensor
    ) -> Tensor:
        """Return the part of an operand on which this process works; ``row``: loops of which it got a part."""
        key = id(step), id(tensor), row, strategy
        if key not in self._narrowings:
            loops, rows = {*operator.loops} - {*row}, enumerate(step.operands.get(id(tensor), ()))
            made = (_narrowing(dimension, pieces, strategy, loops, self._axes) for dimension, pieces in rows)
            self._narrowings[key] = tuple(each for each in made if each is not None)
        for narrowing in self._narrowings[key]:
            part = narrowing.of(part)
        return part

    def first_row(self, operator: Operator, call: Call) -> int | None:
        """Return the first row that this process has of a table that is split by rows; None if it is not."""
        if call.operation.overloadpacket is not torch.ops.aten.embedding:
            return None
        for weight in self.of_operator.get(operator.name, ()):
            cuts = [cut for cut in weight.cuts if cut.dimension == 0 and not cut.gathered]
            first, length = 0, weight.shape[0]
            for cut in cuts:
                length //= self._axes.sizes[cut.axis]
                first += length * self._axes.places[cut.axis]
            return first if cuts else None
        return None

    def _strategy(self, name: str) -> Strategy:
        return self._plan.signature(self._plan.operators[name]).strategy

    def _reading(self, name: str, source: str) -> Move:
        return self.move(source, self._plan.reading(self._plan.operators[name], source))

    def _making(self, name: str) -> tuple[Move, tuple[int, ...]]:
        how = self._plan.making(self._plan.operators[name])
        return self.move(name, how), self.lengths(name, how.source)

    def _adds(self, name: str) -> bool:
        makes = self._plan.operators[name].makes
        return not any(
            place and entry.loop != UNSPLIT and entry.loop not in makes
            for place, entry in zip(self._axes.places, self.strategy(name), strict=True)
        )


def _narrowing(dimension: int, pieces: Pieces, strategy: Strategy, loops: set[str], axes: MeshAxes) -> Narrowing | None:
    """Return how a dimension is narrowed of whole pieces with these loops; None if it has none that are divided."""
    own = strategy if axes.cut is None else strategy[:-1]
    split = [[axis for axis, entry in enumerate(own) if entry.loop == loop != UNSPLIT] for loop, _ in pieces]
    lengths, cuts, taken = [], list[tuple[int, int, int]](), None
    for piece, (along, (loop, length)) in enumerate(zip(split, pieces, strict=True)):
        if axes.cut is not None and loop == strategy[-1].loop != UNSPLIT:
            if loop in loops:
                taken = piece, axes.cut.first, axes.cut.length(length)
            else:
                length = axes.cut.length(length)
        if loop in loops:
            cuts += [(piece, axes.sizes[axis], axes.places[axis]) for axis in along]
        else:
            for axis in along:
                length //= axes.sizes[axis]
        lengths.append(length)
    return Narrowing(dimension, tuple(lengths), tuple(cuts), taken) if cuts or taken else None
