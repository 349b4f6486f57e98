"""The signatures of operators on a mesh, and the tensors that pass between them.

A signature is a strategy, and the placements in which parts of sums that the operator makes are added up. The gradient
of a tensor that several operators read is summed up in placements that are chosen too.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from math import gcd, lcm, prod
from typing import NamedTuple, TypeVar

from pipeplan.core.operators import TOKEN, Operator, OperatorGraph
from pipeplan.core.strategies import PARTIAL, WHOLE, LayerStrategies, Placements, Signature, Strategy, splits
from pipeplan.costs.sharding.joined import JoinedLayers, Own, SharedWeight
from pipeplan.costs.sharding.named import NamedStrategy, following
from pipeplan.costs.sharding.placements import stream
from pipeplan.costs.sharding.redistributions import Redistributions, times
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.costs.sharding.shapes import Mesh
from pipeplan.costs.sharding.strategies import gradient, made, needed, returned, strategies

Value = TypeVar("Value")


class Sum(NamedTuple):
    """The gradient of a tensor that comes from several sides, and the placements in which it may be summed up.

    These are operators that read it, and of an output what is behind the layer.
    """

    tensor: str
    choices: tuple[Placements, ...]


class Tensor(NamedTuple):
    """A tensor for a micro-batch.

    Attributes
    ----------
    size, gradient : int
        Bytes of it and of its gradient, which some do not have.
    parts : tuple of int
        Those of each dimension, which the devices that split it must divide.
    end : Placements or None
        The placements of an input or output of a layer, or of what no operator reads; it is also that of its gradient.
    """

    size: int
    gradient: int
    parts: tuple[int, ...]
    end: Placements | None


@dataclass(frozen=True)
class MeshSignatures:
    """The operators of one layer, or of all layers of a model, on a mesh.

    Attributes
    ----------
    rooflines : Rooflines or JoinedLayers
        The layer on one device, and what its operators take; or all layers.
    mesh : Mesh
    input, output : Placements
        Of what the layer reads and makes, and of its gradient; of several inputs or outputs that of the `stream`,
        others are whole. Empty is whole. What joined layers read, the batch, is there in any placements.
    tokens : bool
        Whether operators may be split along tokens.
    gathers : bool
        Whether weights may be gathered.
    scatters : bool
        Whether parts of sums may be added up to parts of any dimension, or only to the whole.
    split_loss : bool
        Whether operators of the loss may be split.
    shares : bool
        Whether several operators may read a tensor from one copy.
    keeps : bool
        Whether copies may be kept for the backward.
    allows : callable or None
        ``allows(operator, strategy)``: which strategies there are, of all others.
    named : NamedStrategy or None
        The one by which products of matrices are split where they can be; None is any.
    only : LayerStrategies or None
        The one signature of each operator, and the placements of each sum, if these are chosen already.
    known : dict
        What is known of operators that are alike, which several layers may share.
    layers : tuple of (Rooflines, int)
        Layers with these operators that are split alike, equal ones once with how many they are; costs are sums over
        them. Empty: the one layer, or joined ones.
    """

    rooflines: Rooflines | JoinedLayers
    mesh: Mesh
    input: Placements = ()
    output: Placements = ()
    tokens: bool = True
    gathers: bool = True
    scatters: bool = True
    split_loss: bool = True
    shares: bool = True
    keeps: bool = True
    allows: Callable[[Operator, Strategy], bool] | None = field(default=None, repr=False, compare=False)
    named: NamedStrategy | None = None
    only: LayerStrategies | None = None
    known: dict[Hashable, dict[Hashable, object]] = field(default_factory=dict, repr=False, compare=False)
    layers: tuple[tuple[Rooflines, int], ...] = ()

    @property
    def graph(self) -> OperatorGraph:
        """The operators."""
        return self.rooflines.graph

    @property
    def layer(self) -> Rooflines:
        """What the operators of the first layer take, or of the only one."""
        return self.own(self.graph.operators[0]).rooflines

    @property
    def every_layer(self) -> tuple[tuple[Rooflines, int], ...]:
        """The layers that are split alike, equal ones once with how many they are."""
        return self.layers or ((self.layer, 1),)

    @property
    def count(self) -> int:
        """Over how many layers costs are sums."""
        return sum(count for _, count in self.every_layer)

    @property
    def joined(self) -> bool:
        """Whether they are those of several layers."""
        return isinstance(self.rooflines, JoinedLayers)

    @property
    def shared(self) -> tuple[SharedWeight, ...]:
        """The weights that two of the layers share."""
        return self.rooflines.shared if isinstance(self.rooflines, JoinedLayers) else ()

    def own(self, operator: Operator) -> Own:
        """Return an operator as its layer has it, with what it takes there."""
        if isinstance(self.rooflines, JoinedLayers):
            return self.rooflines.of[operator.name]
        return Own(self.rooflines, operator, 0)

    @cached_property
    def signatures(self) -> tuple[tuple[Signature, ...], ...]:
        """Those of each operator."""
        return tuple(
            self.once(("signatures", self.likeness[operator.name]), partial(self._signatures, operator))
            for operator in self.graph.operators
        )

    @cached_property
    def sums(self) -> tuple[Sum, ...]:
        """Tensors whose gradients are summed up in placements that are chosen."""
        sums = []
        for name in (*self.graph.inputs, *self.index):
            readers = self.readers.get(name, ())
            if readers and len(readers) + (name in self.graph.outputs) > 1 and self._sends(name):
                back = [(self.likeness[reader.name], reader.reads[name]) for reader in readers]
                key = "sum", self.likeness.get(name, name), name in self.graph.outputs, *back
                choices = self.once(key, partial(self._sum_choices, name)) if self.only is None else self._chosen(name)
                sums.append(Sum(name, choices))
        return tuple(sums)

    @cached_property
    def index(self) -> dict[str, int]:
        """Number of each operator."""
        return {operator.name: v for v, operator in enumerate(self.graph.operators)}

    @cached_property
    def readers(self) -> dict[str, tuple[Operator, ...]]:
        """The operators that read each tensor."""
        readers: dict[str, list[Operator]] = {}
        for operator in self.graph.operators:
            for name in operator.reads:
                readers.setdefault(name, []).append(operator)
        return {name: tuple(operators) for name, operators in readers.items()}

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor: inputs, and what operators make."""
        ends = self.graph.whole
        return {name: self._tensor(name, name in ends) for name in (*self.graph.inputs, *self.index)}

    @cached_property
    def likeness(self) -> dict[str, Hashable]:
        """What determines the signatures and costs of each operator; equal for operators that are alike."""
        likeness: dict[str, Hashable] = {}
        for operator in self.graph.operators:
            in_layer = self.own(operator)
            read = tuple((self.tensors[name], name in self.graph.inputs) for name in operator.reads)
            chosen = self.only.operators[operator.name] if self.only else None
            likeness[operator.name] = (
                id(in_layer.rooflines),
                in_layer.operator.name,
                self.tensors[operator.name],
                read,
                chosen,
            )
        return likeness

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return what is known under a key, made the first time."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]  # type: ignore[return-value]

    @cached_property
    def _known(self) -> dict[Hashable, object]:
        """What is known on this mesh for these strategies."""
        asked = self.tokens, self.gathers, self.scatters, self.split_loss, self.shares, self.keeps
        return self.known.setdefault((self.mesh, *asked, self.allows, self.named), {})

    def _sends(self, name: str) -> bool:
        """Whether a tensor has a gradient: inputs of joined layers have none."""
        return not (self.joined and name in self.graph.without_gradient)

    def _tensor(self, name: str, is_end: bool) -> Tensor:
        is_input = name in self.graph.inputs
        size = self.graph.inputs[name] if is_input else self.graph.operators[self.index[name]].output
        size *= 1 if isinstance(self.rooflines, JoinedLayers) else self.rooflines.micro_batch
        sends = name not in self.graph.without_gradient
        return Tensor(size, size * sends, parts_of(self.graph, name), self._end(name) if is_end else None)

    def held(self, name: str, strategies: LayerStrategies) -> Placements:
        """Return the placements in which a tensor is held."""
        end = self.tensors[name].end
        return strategies.operators[name].held if end is None else end

    def _end(self, name: str) -> Placements:
        """Placements of an input or output of the layer."""
        graph = self.graph
        names, placements = (tuple(graph.inputs), self.input) if name in graph.inputs else (graph.outputs, self.output)
        return placements if placements and name == stream(graph, names) else (WHOLE,) * len(self.mesh.sizes)

    def moves(self, name: str, gradient: bool) -> Redistributions[int]:
        """Return the redistributions of a tensor, or of its gradient."""
        tensor = self.tensors[name]
        size = tensor.gradient if gradient else tensor.size
        key = "moves", size, tensor.parts
        return self.once(key, lambda: times(size, *self.mesh[:2], tensor.parts, self.mesh.sharing))

    def needed(self, reader: Operator, strategy: Strategy, source: str) -> Placements:
        """Return the placements in which an operator needs what it reads of ``source``."""
        return needed(reader, strategy, source, source in self.graph.without_gradient)

    def _signatures(self, operator: Operator) -> tuple[Signature, ...]:
        if self.only:
            return (self.only.operators[operator.name],)
        allowed = strategies(operator, self.mesh.sizes, self.gathers, self.tokens)
        if not self.split_loss and operator.name in self.graph.loss_names:
            allowed = tuple(strategy for strategy in allowed if not splits(strategy))
        if self.allows is not None:
            allowed = tuple(strategy for strategy in allowed if self.allows(self.own(operator).operator, strategy))
        signatures = tuple(Signature(strategy, held) for strategy in allowed for held in self._held(operator, strategy))
        return following(operator, signatures, self.named) if self.named else signatures

    def _held(self, operator: Operator, strategy: Strategy) -> tuple[Placements, ...]:
        """The placements in which what an operator makes may be held: parts of sums are added up."""
        end = self.tensors[operator.name].end
        if end is not None:
            return (end,)
        targets = (WHOLE, *range(len(operator.makes))) if self.scatters else (WHOLE,)
        every = product(*(targets if placement == PARTIAL else (placement,) for placement in made(operator, strategy)))
        fits = self.moves(operator.name, False).fits
        return tuple(placements for placements in every if PARTIAL not in made(operator, strategy) or fits(placements))

    def _chosen(self, name: str) -> tuple[Placements, ...]:
        """The placements in which a gradient is summed up under chosen strategies; outputs without have their own."""
        whole = (WHOLE,) * len(self.mesh.sizes)
        default = self._end(name) if name in self.graph.outputs else whole
        return () if self.only is None else (self.only.sums.get(name, default),)

    def _sum_choices(self, name: str) -> tuple[Placements, ...]:
        """The placements in which the gradient of a tensor may be summed up: those in which it is made or needed.

        That of an output can get them from behind the layer.
        """
        choices = {(WHOLE,) * len(self.mesh.sizes)}
        if self.tensors[name].end is not None:
            choices.add(self._end(name))
        for reader in self.readers[name]:
            strategies = {signature.strategy for signature in self.signatures[self.index[reader.name]]}
            choices |= {returned(reader, strategy, name) for strategy in strategies}
        if name in self.index:
            maker = self.index[name]
            choices |= {
                gradient(self.graph.operators[maker], signature.strategy) for signature in self.signatures[maker]
            }
        if name in self.graph.outputs:
            moves = self.moves(name, True)
            choices = {placements for placements in choices if moves.cost(self._end(name), placements) is not None}
        return tuple(sorted(choices))


def parts_of(graph: OperatorGraph, name: str) -> tuple[int, ...]:
    """Return the parts of each dimension of a tensor, which the devices that split it must divide.

    Tokens have those of the layer's other tensors where none of its own operators runs on parts of them.
    """
    tokens = gcd(*(operator.loops[TOKEN] for operator in graph.operators if TOKEN in operator.loops)) or 1
    rows = [(operator, operator.reads[name]) for operator in graph.operators if name in operator.reads]
    rows += [(operator, operator.makes) for operator in graph.operators if operator.name == name]
    count = len(rows[0][1]) if rows else 0
    return tuple(
        lcm(*(operator.loops.get(axes[i], tokens if axes[i] == TOKEN else 1) for operator, axes in rows))
        for i in range(count)
    )


def with_fitting_ends(graph: OperatorGraph, strategies: LayerStrategies, sizes: Sequence[int]) -> LayerStrategies:
    """Return strategies whose ends are whole where operators do not know into how many parts these may be divided.

    And where the layer passes a tensor on, which may leave otherwise than it enters.
    """
    before, after = tuple(graph.inputs), graph.outputs
    passed = {*before} & {*after}

    def fits(placements: Placements, names: tuple[str, ...]) -> bool:
        name = stream(graph, names)
        parts = parts_of(graph, name) if name and name not in passed else ()
        counts = {
            placement: prod(n for n, other in zip(sizes, placements, strict=True) if other == placement)
            for placement in placements
        }
        return all(
            placement < len(parts) and parts[placement] % count == 0
            for placement, count in counts.items()
            if placement >= 0
        )

    return replace(
        strategies,
        input=strategies.input if fits(strategies.input, before) else (),
        output=strategies.output if fits(strategies.output, after) else (),
    )
