"""`MeshLayers`: calls of a stage's layers on a mesh of processes with several axes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.core.errors import PlanError
from pipeplan.core.operators import OperatorGraph
from pipeplan.core.words import UNSPLIT, LayerWords
from pipeplan.costs.sharding.batches import by_samples
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.operators.find import named_weights
from pipeplan.frontend.operators.follow import NamedWeight, UnfollowedError, program_of
from pipeplan.frontend.operators.program import Program
from pipeplan.frontend.operators.record import record
from pipeplan.frontend.split_backward.queue import WeightQueue
from pipeplan_executor.sharding.mesh.gradients import MeshGradients
from pipeplan_executor.sharding.mesh.moves import MeshAxes
from pipeplan_executor.sharding.mesh.run import MeshLayer
from pipeplan_executor.sharding.shards import ParameterShard

Mode = bool
"""True in training, false in evaluation: the two may call other operations."""


class MeshLayers:
    """Layers of a model on a mesh, as their words say.

    Parameters
    ----------
    blank : torch.nn.Module
        The unsplit model on the meta device.
    sequence : LayerSequence
        Its layers, also there.
    flow : sequence of sequence of Tensor
        Inputs of the first layer, then outputs of each layer: of a micro-batch, on the meta device.
    words : mapping of str to LayerWords
        Of the layers of one stage, by name.
    axes : MeshAxes
    context : callable
        Context of the forward, for mixed precision.

    Attributes
    ----------
    shards : dict of str to ParameterShard
        The parts of parameters that this process has, by each of their names in the unsplit model.
    cuts : dict of str to frozenset of int
        The axes along which a parameter is split, by the same names.
    partial : MeshGradients or None
        Gradients that are summed along axes after the last backward.
    """

    def __init__(
        self,
        blank: nn.Module,
        sequence: LayerSequence,
        flow: Sequence[Sequence[Tensor]],
        words: Mapping[str, LayerWords],
        axes: MeshAxes,
        context: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.shards: dict[str, ParameterShard] = {}
        self.cuts: dict[str, frozenset[int]] = {}
        self.partial: MeshGradients | None = None
        self._axes, self._words = axes, words
        self._summed: dict[nn.Parameter, tuple[int, ...]] = {}
        weights = named_weights(blank, sequence)
        self._programs: dict[str, dict[Mode, Callable[[], Program]]] = {}
        self._layers: dict[tuple[str, Mode], MeshLayer] = {}
        self._known: dict[int, tuple[ParameterShard | None, tuple[int, ...], str]] = {}
        self._parameters = dict(blank.named_parameters(remove_duplicate=False))
        for number, (name, layer) in enumerate(zip(sequence.names, sequence.layers, strict=True)):
            if name in words:
                given = tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in flow[number])
                own = partial(_program, layer, given, weights[number], context)
                self._programs[name] = {mode: partial(own, mode) for mode in (True, False)}
                self._place(name, sequence.parameters[number])

    def _place(self, name: str, names: Mapping[str, str]) -> None:
        """Note the parts of a layer's parameters."""
        layer = self._layer(name, True)
        for local, weight in layer.weights.items():
            full, shard = names[local], weight.shard(self._axes)
            own = shard, weight.summed, name
            known = self._known.setdefault(id(self._parameters[full]), own)
            if known[:2] != own[:2]:
                raise PlanError(
                    f"layers {known[2]} and {name} share {full}, and the plan splits it in unlike ways; solve again"
                )
            if shard is not None:
                self.shards[full] = shard
                self.cuts[full] = frozenset(cut.axis for cut in weight.cuts)

    def _layer(self, name: str, mode: Mode) -> MeshLayer:
        if (name, mode) not in self._layers:
            program, words = self._programs[name][mode](), self._words[name]
            try:
                words = words if mode else _in_evaluation(words, program.graph)
                self._layers[name, mode] = MeshLayer(program, words, self._axes)
            except ValueError as error:
                raise PlanError(f"layer {name} cannot run as the plan has it: {error}; solve again") from error
        return self._layers[name, mode]

    def wrapped(self, name: str, layer: nn.Module, _names: Mapping[str, str]) -> Callable[..., Any]:
        """Return a function to call in place of the layer, which has this process's parts of parameters."""
        there = dict(layer.named_parameters(remove_duplicate=False))
        for local, weight in self._layer(name, True).weights.items():
            if weight.summed:
                self._summed[there[local]] = weight.summed
        self.partial = MeshGradients(self._axes, self._summed) if self._summed else None
        layer.weight_queue = WeightQueue()  # a stage with split backwards puts its own there
        layer.forward = partial(self._call, name, layer)
        called: Callable[..., Any] = layer
        return called

    def _call(self, name: str, layer: nn.Module, *tensors: Tensor) -> tuple[Tensor, ...]:
        run = self._layer(name, layer.training)
        parameters = dict(layer.named_parameters(remove_duplicate=False))
        buffers = dict(layer.named_buffers(remove_duplicate=False))
        with torch.autocast(tensors[0].device.type, enabled=False):  # casts are among the calls
            return tuple(run(parameters, buffers, *tensors, queue=layer.weight_queue))

    def loss(self, loss: Callable[..., Tensor], outputs: tuple[Tensor, ...], targets: Any) -> Tensor:
        """Return a loss of the stage's outputs, which every process has whole."""
        return loss(outputs, targets)

    def gathered(self, tensors: tuple[Tensor, ...], _for_loss: bool = False) -> tuple[Tensor, ...]:
        """Return the outputs of the stage, as they are."""
        return tensors

    def backward(self) -> AbstractContextManager[None]:
        """Context for a backward, and for its delayed weight gradients."""
        return nullcontext()


def _in_evaluation(words: LayerWords, graph: OperatorGraph) -> LayerWords:
    """Return what the words of a layer in training say of its operators in evaluation; others run whole.

    Without dropout other operators read a tensor, and attention may be one operator.
    """
    loops = {each.name: {UNSPLIT, *each.loops} for each in graph.operators}
    reads = {each.name: each.reads for each in graph.operators}
    known = {
        name: own
        for name, own in words.operators.items()
        if loops.get(name, set()).issuperset(e.loop for e in own.word)
    }
    copies = {}
    for source, copy in words.copies.items():
        readers = tuple(reader for reader in copy.readers if source in reads.get(reader, ()))
        copies |= {source: copy._replace(readers=readers)} if readers else {}
    return replace(words, operators=known, copies=copies)


def _program(
    layer: nn.Module,
    given: Sequence[Tensor],
    weights: Mapping[str, NamedWeight],
    context: Callable[[], AbstractContextManager[object]],
    mode: Mode,
) -> Program:
    """Return a layer's forward in a mode as a program."""
    before = {part: part.training for part in layer.modules()}
    layer.train(mode)
    try:
        found = program_of(record(layer, given, context, None, None), weights, samples := given[0].shape[0])
        return replace(found, graph=by_samples(found.graph, samples))
    except UnfollowedError as error:
        raise PlanError(f"the operators of a layer cannot be followed, as the plan needs it: {error}") from error
    finally:
        for part, training in before.items():
            part.training = training
