"""Weights that layers share: whether ways split them alike, and the bytes that a device has of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from pipeplan.core.grouped_axis import ShardAxis
from pipeplan.core.model import Model, Tie
from pipeplan.core.operators import OperatorGraph
from pipeplan.core.strategies import PARTIAL, UNSPLIT, WHOLE, Strategy
from pipeplan.costs.sharding.prices import weight_parts

Cuts = tuple[tuple[ShardAxis, int], ...]
"""How each weight that a layer shares is split along each axis of a mesh, and `PARTIAL` where gradients are parts.

`WHOLE` where not."""


def agree(model: Model, cuts: Callable[[str], Iterable[Cuts]]) -> bool:
    """Return whether layers that share weights split them alike; where operators are not known, these are whole.

    ``cuts``: those of all layers with these operators, by name.
    """
    of = {layer.name: layer.operators for layer in model.layers}
    for tie in model.ties:
        names = {of[name] for name in tie.layers}
        found = {own for name in names for own in cuts(name)}
        if len(found) > 1 or (
            "" in names and any(placement != WHOLE for own in found for cut in own for placement in cut)
        ):
            return False
    return True


def shared_cuts(graph: OperatorGraph, strategies: Mapping[str, Strategy]) -> Cuts:
    """Return the cuts of a layer's shared weights.

    Parameters
    ----------
    graph : OperatorGraph
        With samples among the axes of tensors.
    strategies : mapping of str to Strategy
        Of the operators that have shared weights, by name.
    """
    return tuple(
        (graph.shard_axis(weight.name, weight.loops.index(entry.loop)), WHOLE)
        if entry.loop in weight.loops
        else (WHOLE, PARTIAL if entry.loop != UNSPLIT and entry.loop in each.makes else WHOLE)
        for each in graph.operators
        for weight in each.weights
        if weight.shared
        for entry in strategies[each.name]
    )


def shared_bytes(
    tie: Tie, graph: OperatorGraph | None, strategies: Mapping[str, Strategy], sizes: Sequence[int]
) -> int:
    """Return the bytes of a tie on a device, in proportion to what it has of the first layer's shared weights.

    Parameters
    ----------
    tie : Tie
    graph : OperatorGraph or None
        The operators of the first layer; None if they are not known, and the weights are whole.
    strategies : mapping of str to Strategy
        Of the operators that have shared weights, by name.
    sizes : sequence of int
        Devices along each axis of the mesh.
    """
    every = () if graph is None else graph.operators
    rows = [(weight, strategies[each.name]) for each in every for weight in each.weights if weight.shared]
    whole = sum(weight.size for weight, _ in rows)
    own = sum(weight.size // weight_parts(weight, strategy, tuple(sizes)) for weight, strategy in rows)
    return tie.parameters * own // whole if whole else tie.parameters
