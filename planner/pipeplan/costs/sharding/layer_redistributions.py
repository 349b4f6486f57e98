"""Redistributions of a layer's tensors, and of their gradients, under the strategies of its operators."""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from pipeplan.core.operators import Operator, OperatorGraph
from pipeplan.core.strategies import UNSPLIT, WHOLE, AxisStrategy, LayerStrategies, Placements, Signature
from pipeplan.costs.sharding.placements import stream
from pipeplan.costs.sharding.strategies import gradient, made, needed, returned


class Redistribution(NamedTuple):
    """A tensor's redistribution, and that of its gradient on the way back.

    Attributes
    ----------
    source, target : Placements
    returned, wanted : Placements
        Of the gradient: as it comes back, and as it is needed before.
    """

    source: Placements
    target: Placements
    returned: Placements
    wanted: Placements


def moves_again(graph: OperatorGraph, operator: Operator) -> bool:
    """Return whether an operator moves in the backward again what it reads: with weights, or as attention."""
    return bool(operator.weights) or (operator.attention is not None and operator.name not in graph.without_gradient)


def waits(graph: OperatorGraph, operator: Operator, source: str) -> bool:
    """Return whether only the weight gradient needs what an operator moves again.

    So it is for products, convolutions and tables. Norms, say, need it for the input gradient already.
    """
    return bool(operator.weights) and (operator.weight_gradient_flops > 0 or source in graph.without_gradient)


def copied_for_inputs(graph: OperatorGraph, readers: Sequence[Operator], source: str) -> bool:
    """Return whether the copy of a tensor, if a backward makes it again, is made for the input gradient.

    So it is if any operator that reads the tensor moves it again for that, and then stays for weight gradients.
    """
    return any(moves_again(graph, reader) and not waits(graph, reader, source) for reader in readers)


class PlannedLayer:
    """A layer's operators with their strategies.

    Parameters
    ----------
    graph : OperatorGraph
    strategies : LayerStrategies
    axes : int
        Number of the mesh's axes.

    Raises
    ------
    ValueError
        If a copy is of no tensor of the layer, or for an operator that does not read it.
    """

    def __init__(self, graph: OperatorGraph, strategies: LayerStrategies, axes: int) -> None:
        self.graph, self._strategies = graph, strategies
        self._whole: Placements = (WHOLE,) * axes
        self.operators = {each.name: each for each in graph.operators}
        self.copies = strategies.copies
        self._alone = Signature((AxisStrategy(UNSPLIT),) * axes, self._whole)
        for name, copy in strategies.copies.items():
            for reader in copy.readers:
                if reader not in self.operators or name not in self.operators[reader].reads:
                    raise ValueError(f"{reader!r} gets a copy of {name!r}, and does not read it")

    def signature(self, operator: Operator) -> Signature:
        """Return the strategy of an operator, and the placements of what it makes."""
        found = self._strategies.operators.get(operator.name, self._alone)
        return Signature(found.strategy, self.end(operator.name)) if operator.name in self.graph.whole else found

    def end(self, name: str) -> Placements:
        """Return the placements of an input or output of the layer."""
        is_input = name in self.graph.inputs
        names = tuple(self.graph.inputs) if is_input else self.graph.outputs
        placements = self._strategies.input if is_input else self._strategies.output
        return placements if placements and name == stream(self.graph, names) else self._whole

    def held(self, name: str) -> Placements:
        """Return the placements in which a tensor is held."""
        return self.end(name) if name in self.graph.inputs else self.signature(self.operators[name]).held

    @cached_property
    def _readers(self) -> dict[str, list[Operator]]:
        found: dict[str, list[Operator]] = {}
        for each in self.graph.operators:
            for name in each.reads:
                found.setdefault(name, []).append(each)
        return found

    def goal(self, name: str) -> Placements:
        """Return the placements in which the gradient of a tensor comes back from the operators that read it."""
        readers = self._readers.get(name, ())
        if name in self.graph.outputs:
            return self.summed(name, self.held(name)) if readers else self.held(name)
        if name in self.graph.whole and name not in self.graph.inputs:
            return self.held(name)
        return self.summed(name, self._whole) if len(readers) > 1 else self._wanted(name)

    def summed(self, name: str, default: Placements) -> Placements:
        """Return the placements in which the gradient of a tensor is summed up."""
        return self._strategies.sums.get(name, default)

    def _wanted(self, name: str) -> Placements:
        """Return the placements in which the maker of a tensor, or the layer before, needs the gradient."""
        if name in self.graph.inputs:
            return self.end(name)
        return gradient(self.operators[name], self.signature(self.operators[name]).strategy)

    def copy(self, source: str, operator: Operator) -> Placements | None:
        """Return the placements of the copy of a tensor that an operator reads; None if it reads what is held."""
        copy = self.copies.get(source)
        return None if copy is None or operator.name not in copy.readers else copy.placements

    def copying(self, source: str) -> Redistribution | None:
        """Return how the copy of a tensor is made; None if it has none."""
        copy, held = self.copies.get(source), self.held(source)
        if copy is None:
            return None
        placements = self.copy(source, self.operators[copy.readers[0]])
        return Redistribution(held, placements or held, held, held)

    def copied_for_inputs(self, source: str) -> bool:
        """Return whether the copy of a tensor, if a backward makes it again, is made for the input gradient."""
        return copied_for_inputs(self.graph, self._readers[source], source)

    def moves_again(self, operator: Operator) -> bool:
        """Return whether an operator moves in the backward again what it reads: with weights, or as attention."""
        return moves_again(self.graph, operator)

    def reading(self, operator: Operator, source: str) -> Redistribution:
        """Return how an operator gets what it reads: from what is held, or from the copy."""
        strategy, copy = self.signature(operator).strategy, self.copy(source, operator)
        return Redistribution(
            self.held(source) if copy is None else copy,
            needed(operator, strategy, source, source in self.graph.without_gradient),
            returned(operator, strategy, source),
            self.goal(source),
        )

    def making(self, operator: Operator) -> Redistribution:
        """Return how what an operator makes gets the placements in which it is held."""
        strategy, held = self.signature(operator)
        return Redistribution(made(operator, strategy), held, self.goal(operator.name), gradient(operator, strategy))

    def entering(self, name: str) -> Redistribution:
        """Return how the gradient of an input leaves the layer."""
        end = self.end(name)
        return Redistribution(end, end, self.goal(name), end)

    def for_loss(self, name: str) -> Redistribution:
        """Return how the loss gets what the layer makes for it: the logits as its first operator needs them."""
        first = self.operators[self.graph.loss_name]
        target = needed(first, self.signature(first).strategy, name) if name in first.reads else self._whole
        return Redistribution(self.held(name), target, target, self.goal(name))

    def leaving(self, name: str) -> Redistribution:
        """Return how an output leaves the layer."""
        end = self.held(name)
        return Redistribution(end, end, end, self.goal(name))
