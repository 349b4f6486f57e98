"""Layers of a model one behind another, as one graph of operators on a batch.

::

    layer 0     lookup ──▶ …                       names: 'block.0/query'
    layer 1         ╰──▶ norm ──▶ query ──▶ …      reads what layer 0 makes, in whatever placements that is held

What each operator takes is that of its layer (`Rooflines`); equal layers share these. A layer whose operators are not
known is one operator, which runs whole on every device.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.errors import InputError
from pipeplan.core.model import Layer, LayerCost, Model
from pipeplan.core.operators import INPUT, CrossEntropy, Operator, OperatorGraph, Weight
from pipeplan.costs.layers import layer_costs
from pipeplan.costs.sharding.batches import has_samples, of_batch
from pipeplan.costs.sharding.rooflines import Rooflines, rates_of

UNKNOWN, LAYER = "unknown", "layer"
"""Kind and name of the operator that stands for a layer whose operators are not known."""
WHOLE_AXIS = "whole"
"""Loop of an axis that is read whole."""


class Own(NamedTuple):
    """An operator of joined layers: what its layer takes, the operator there, and the number of the layer."""

    rooflines: Rooflines
    operator: Operator
    layer: int


class SharedWeight(NamedTuple):
    """A weight that an operator of an earlier layer shares with one of a later layer."""

    first: str
    weight: Weight
    later: str
    copy: Weight


@dataclass(frozen=True)
class JoinedLayers:
    """The operators of all layers of a model.

    Attributes
    ----------
    graph : OperatorGraph
        Its sample is the batch. The model's inputs have no gradient.
    of : mapping of str to Own
        For each operator that of its layer.
    shared : tuple of SharedWeight
    """

    graph: OperatorGraph
    of: Mapping[str, Own]
    shared: tuple[SharedWeight, ...] = ()


def joined_layers(
    model: Model, kind: DeviceKind, batch: int, optimizer: str = "sgd", extrapolate: bool = False
) -> JoinedLayers:
    """Return the layers of a model as one graph, with their costs on one device of a kind for a batch.

    Raises
    ------
    InputError
        If the layers are no chain, none has operators, or costs are not known.
    """
    for before, layer in zip((None, *model.layers), model.layers, strict=False):
        if layer.inputs != ((before.name,) if before else ()):
            raise InputError(
                f"a mesh takes layers that form a chain; {layer.name!r} of {model.name!r} reads "
                f"{', '.join(map(repr, layer.inputs)) or 'nothing'}, not {repr(before.name) if before else 'the batch'}"
            )
    if not model.operators:
        raise InputError(
            f"the operators of {model.name!r} are not known, so nothing can be split; profile it, or take their sizes "
            "with pipeplan profile --device meta"
        )
    costs = layer_costs(model, kind, batch, extrapolate=extrapolate, optimizer=optimizer)
    return _Joiner(model, kind, batch).joined(costs)


@dataclass
class _Joiner:
    """Walk along the layers."""

    model: Model
    kind: DeviceKind
    batch: int
    operators: list[Operator] = field(default_factory=list)
    of: dict[str, Own] = field(default_factory=dict)
    constant: set[str] = field(default_factory=set)
    inert: set[str] = field(default_factory=set)
    ranks: dict[str, int] = field(default_factory=dict)
    known: dict[object, Rooflines] = field(default_factory=dict)
    passing: tuple[str, ...] = ()

    @cached_property
    def plain(self) -> bool:
        """Whether the model's tensors are those of one sample."""
        return not any(map(has_samples, self.model.operators.values()))

    def joined(self, costs: Sequence[LayerCost]) -> JoinedLayers:
        """Return the layers as one graph."""
        loss, inputs = None, dict[str, int]()
        self.passing = tuple((self._graph(0) or OperatorGraph((Operator(LAYER, UNKNOWN, {}, {}, (), 0),))).inputs)
        for number, (layer, cost) in enumerate(zip(self.model.layers, costs, strict=True)):
            rooflines = self._rooflines(number, layer, cost, self.passing)
            inputs = inputs or dict(rooflines.graph.inputs)
            name_of = dict(zip(rooflines.graph.inputs, self.passing, strict=True))
            name_of |= {operator.name: f"{layer.name}/{operator.name}" for operator in rooflines.graph.operators}
            self._add(number, rooflines, name_of)
            self.passing = tuple(name_of[name] for name in rooflines.graph.outputs)
            if rooflines.graph.loss is not None:
                loss = CrossEntropy(
                    tuple(name_of[name] for name in rooflines.graph.loss_names), rooflines.graph.loss.rows
                )
        inert = (*inputs, *sorted(self.inert))
        graph = OperatorGraph(tuple(self.operators), inputs, self.passing, inert, loss)
        return JoinedLayers(graph, self.of, tuple(self._shared()))

    def _graph(self, number: int) -> OperatorGraph | None:
        """The operators of a layer for one sample, if they are known."""
        layers = self.model.layers
        return self.model.operators.get(layers[number].operators) if number < len(layers) else None

    def _rooflines(self, number: int, layer: Layer, cost: LayerCost, passing: tuple[str, ...]) -> Rooflines:
        """What the operators of a layer take for the batch; the same object for equal layers."""
        graph = self._graph(number)
        known = graph is not None and len(graph.inputs) == len(passing)
        constant = tuple(i for i, source in enumerate(passing) if source in self.constant)
        ranks = tuple(self.ranks.get(source) for source in passing)
        key = layer.operators if known else number, constant, ranks, cost, layer.parameters
        if key not in self.known:
            if graph is None or not known:
                for_batch = self._stand_in(number, layer, cost, len(passing))
            else:
                fixed = [name for i, name in enumerate(graph.inputs) if i in constant]
                for_batch = of_batch(graph, self.batch, fixed, self.plain)
                row = dict(zip(graph.inputs, ranks, strict=True))
                for_batch = replace(
                    for_batch, operators=tuple(_fitted(operator, row) for operator in for_batch.operators)
                )
            self.known[key] = Rooflines(
                for_batch, cost, layer.parameters, self.kind, rates_of(self.kind, self.model.dtype), 1
            )
        return self.known[key]

    def _stand_in(self, number: int, layer: Layer, cost: LayerCost, reads: int) -> OperatorGraph:
        """A layer whose operators are not known: one of its own makes what the next layer reads, or more than one."""
        names = [INPUT if i == 1 else f"{INPUT}#{i}" for i in range(1, reads + 1)]
        after = self._graph(number + 1)
        passed = [((), cost.output)] if after is None else list(_read(of_batch(after, self.batch, (), self.plain)))
        weights = (Weight("weights", ("all",), layer.parameters),) if layer.parameters else ()
        work = layer.work
        rows = {
            name: (WHOLE_AXIS,) * (self.ranks.get(source) or 0)
            for name, source in zip(names, self.passing, strict=True)
        }
        first = Operator(
            LAYER,
            UNKNOWN,
            {},
            rows,
            *passed[0],
            kept=True,
            weights=weights,
            forward_flops=0 if work is None else self.batch * work.forward_flops,
            input_gradient_flops=0 if work is None else self.batch * work.input_gradient_flops,
            weight_gradient_flops=0 if work is None else self.batch * work.weight_gradient_flops,
        )
        read = {LAYER: (WHOLE_AXIS,) * len(first.makes)}
        others = (Operator(f"{LAYER}#{i}", UNKNOWN, {}, read, *one) for i, one in enumerate(passed[1:], 2))
        operators = (first, *others)
        return OperatorGraph(operators, dict.fromkeys(names, 0), tuple(operator.name for operator in operators))

    def _add(self, number: int, rooflines: Rooflines, name_of: Mapping[str, str]) -> None:
        """Append the operators of a layer under their names in the model."""
        for operator in rooflines.graph.operators:
            name = name_of[operator.name]
            reads = {name_of[source]: row for source, row in operator.reads.items()}
            self.operators.append(replace(operator, name=name, reads=reads))
            self.of[name] = Own(rooflines, operator, number)
            for source, row in reads.items():  # of the model's inputs the first reader knows the axes
                self.ranks.setdefault(source, len(row))
            self.ranks[name] = len(operator.makes)
            if all(source in self.constant for source in reads):
                self.constant.add(name)
        self.inert.update(
            name_of[name] for name in rooflines.graph.without_gradient if name not in rooflines.graph.inputs
        )

    def _shared(self) -> Iterator[SharedWeight]:
        """Yield the weights that layers share, each with its first use."""
        place = {layer.name: i for i, layer in enumerate(self.model.layers)}
        by_layer: dict[int, list[tuple[str, Weight]]] = {}
        for name, in_layer in self.of.items():
            by_layer.setdefault(in_layer.layer, []).extend((name, w) for w in in_layer.operator.weights if w.shared)
        for tie in self.model.ties:
            first, *others = (by_layer.get(place[name], []) for name in tie.layers)
            for other in others:
                for (one, weight), (two, copy) in zip(first, other, strict=False):
                    if weight.size == copy.size:
                        yield SharedWeight(one, weight, two, copy)


def _fitted(operator: Operator, ranks: Mapping[str, int | None]) -> Operator:
    """The operator with what it reads of inputs read whole where its axes are not those of what is passed to it."""
    reads = {
        source: row if ranks.get(source) in (None, len(row)) else (WHOLE_AXIS,) * (ranks[source] or 0)
        for source, row in operator.reads.items()
    }
    if reads == operator.reads:
        return operator
    used = {loop for row in (operator.makes, *reads.values(), *(w.loops for w in operator.weights)) for loop in row}
    return replace(operator, reads=reads, loops={k: n for k, n in operator.loops.items() if k in used})


def _read(graph: OperatorGraph) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield for each input of a layer as many axes as are read, none of which has a loop, and its bytes."""
    for name, size in graph.inputs.items():
        rows = (operator.reads[name] for operator in graph.operators if name in operator.reads)
        yield tuple(f"axis {i}" for i in range(len(next(rows, ())))), size
