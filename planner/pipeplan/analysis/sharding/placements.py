"""Placements of every parameter and every tensor of a choice, layer by layer."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pipeplan.core.model import Model
from pipeplan.core.operators import Operator
from pipeplan.core.strategies import PARTIAL, WHOLE, AxisStrategy, Copy, LayerStrategies, Placements
from pipeplan.costs.sharding.prices import GATHERED, weight_placement
from pipeplan.costs.sharding.problem import MeshProblem

Dimensions = tuple[int | str | None, ...]
"""For each axis of the mesh the dimension that it splits, None for whole, or a strategy: ``'parts of a sum'``."""


class PlacedCopy(NamedTuple):
    """A tensor in other dimensions than it is held in, for some operators that read it, and whether it is kept."""

    dimensions: Dimensions
    readers: tuple[str, ...]
    kept: bool


class PlacedOperator(NamedTuple):
    """An operator of a layer as it is split.

    Attributes
    ----------
    name, kind : str
        As the layer has them.
    splits : tuple of str
        For each axis of the mesh the loop that it splits, ``'whole'`` if none; ``', gathered'`` where weights are, and
        ``', by ring'`` or ``', by heads'`` of attention that does not gather keys.
    held : tuple of str
        For each axis the dimension of what is made that it splits, by its loop; ``'whole'`` if none.
    dimensions : Dimensions
        The same by number.
    gradient : Dimensions or None
        The same of the gradient that several readers sum up; None if there is one reader, or no gradient.
    copy : PlacedCopy or None
    weights : mapping of str to Dimensions
        For each weight the dimensions that axes split; ``'gathered'`` where it is split, and gathered for each pass.
    multiplies : bool
    """

    name: str
    kind: str
    splits: tuple[str, ...]
    held: tuple[str, ...]
    dimensions: Dimensions
    gradient: Dimensions | None
    copy: PlacedCopy | None
    weights: Mapping[str, Dimensions]
    multiplies: bool

    @property
    def matters(self) -> bool:
        """Whether it has weights or multiplies."""
        return bool(self.weights) or self.multiplies


class PlacedLayers(NamedTuple):
    """Layers whose operators are split alike.

    Attributes
    ----------
    names : tuple of str
    operators : tuple of PlacedOperator
    """

    names: tuple[str, ...]
    operators: tuple[PlacedOperator, ...]


def placements(model: Model, problem: MeshProblem, choice: Sequence[int]) -> tuple[PlacedLayers, ...]:
    """Return the operators of all layers in a choice; layers that are split alike are one entry."""
    strategies = problem.layer_strategies(choice)
    by_layer: list[list[PlacedOperator]] = [[] for _ in model.layers]
    for name in strategies.operators:
        own = problem.own(problem.graph.operators[problem.index[name]])
        by_layer[own.layer].append(_placed(own.operator, name, strategies, problem))
    alike: dict[str, list[str]] = {}
    first: dict[str, tuple[PlacedOperator, ...]] = {}
    for layer, found in zip(model.layers, by_layer, strict=True):
        key = repr(found)
        alike.setdefault(key, []).append(layer.name)
        first.setdefault(key, tuple(found))
    return tuple(PlacedLayers(tuple(names), first[key]) for key, names in alike.items())


def _placed(operator: Operator, name: str, strategies: LayerStrategies, problem: MeshProblem) -> PlacedOperator:
    """An operator of a layer; ``name``: among all of the model."""
    (strategy, held), summed, copy = strategies.operators[name], strategies.sums.get(name), strategies.copies.get(name)
    return PlacedOperator(
        operator.name,
        operator.kind,
        tuple(map(_split, strategy)),
        tuple("whole" if placement == WHOLE else operator.makes[placement] for placement in held),
        _dimensions(held),
        None if summed is None else _dimensions(summed),
        None if copy is None else _copied(copy, problem),
        {weight.name: tuple(map(_place, weight_placement(weight, strategy))) for weight in operator.weights},
        bool(operator.forward_flops),
    )


def _copied(copy: Copy, problem: MeshProblem) -> PlacedCopy:
    """A copy, and its readers by the names that they have in their layers."""
    every = problem.graph.operators
    names = (problem.own(every[problem.index[name]]).operator.name for name in copy.readers)
    return PlacedCopy(_dimensions(copy.placements), tuple(names), copy.kept)


def _split(entry: AxisStrategy) -> str:
    return (entry.loop or "whole") + ", gathered" * entry.gathers + f", by {entry.by}" * bool(entry.by)


def _dimensions(placements: Placements) -> Dimensions:
    return tuple(
        "parts of a sum" if placement == PARTIAL else None if placement == WHOLE else placement
        for placement in placements
    )


def _place(placement: int) -> int | str | None:
    return "gathered" if placement == GATHERED else None if placement == WHOLE else placement
