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
from pipeplan.core.words import UNSPLIT, Copy, LayerWords
from pipeplan.costs.sharding.batches import by_samples
from pipeplan.frontend.batch import Batch, tensors
from pipeplan.frontend.capture.flow import Tensors, as_tuple
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.operators.find import named_weights
from pipeplan.frontend.operators.follow import NamedWeight, UnfollowedError, program_of
from pipeplan.frontend.operators.program import Program
from pipeplan.frontend.operators.record import record
from pipeplan.frontend.split_backward.attach import QUEUE
from pipeplan.frontend.split_backward.queue import WeightQueue
from pipeplan_executor.sharding.mesh.gradients import MeshGradients
from pipeplan_executor.sharding.mesh.moves import MeshAxes
from pipeplan_executor.sharding.mesh.run import MeshLayer
from pipeplan_executor.sharding.shards import ParameterShard

Loss = Callable[[Tensors, Batch], Tensor]
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
        Context of forward and loss, for mixed precision.
    loss : callable, optional
        ``loss(outputs, targets)`` of the last layer; needed if the words split its operators.
    targets : Batch
        Of a micro-batch, on the meta device.

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
        loss: Loss | None = None,
        targets: Batch = (),
    ) -> None:
        self.shards: dict[str, ParameterShard] = {}
        self.cuts: dict[str, frozenset[int]] = {}
        self.partial: MeshGradients | None = None
        self._axes, self._words = axes, words
        self._head, self._targets = "", targets  # the layer whose loss is split, if any is
        self._last: nn.Module | None = None
        self._summed: dict[nn.Parameter, tuple[int, ...]] = {}
        weights = named_weights(blank, sequence)
        self._programs: dict[str, Callable[..., Program]] = {}
        self._layers: dict[tuple[object, ...], MeshLayer] = {}
        self._known: dict[int, tuple[ParameterShard | None, tuple[int, ...], str]] = {}
        self._parameters = dict(blank.named_parameters(remove_duplicate=False))
        for number, (name, layer) in enumerate(zip(sequence.names, sequence.layers, strict=True)):
            if name in words:
                given = tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in flow[number])
                self._programs[name] = partial(_program, name, layer, given, weights[number], context)
                if name == sequence.names[-1] and loss is not None and self._splits_more(name):
                    self._head, self._programs[name] = name, partial(self._programs[name], loss=loss)
                self._place(name, sequence.parameters[number])

    def _splits_more(self, name: str) -> bool:
        """Return whether words split operators that a layer has not by itself: those of its loss."""
        known = {each.name for each in self._programs[name](True).graph.operators}
        rest = (own.word for each, own in self._words[name].operators.items() if each not in known)
        return any(letter.loop != UNSPLIT for word in rest for letter in word)

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

    def _layer(self, name: str, mode: Mode, targets: Batch | None = None) -> MeshLayer:
        """Return a layer in a mode; with a split loss, for targets of these shapes."""
        wanted = self._targets if targets is None else targets
        shapes = [(tuple(each.shape), each.dtype) for each in tensors(wanted)] if name == self._head else []
        key = name, mode, *shapes
        if key not in self._layers:
            program = self._programs[name](mode, wanted)
            if name == self._head and program.graph.loss is None:
                raise PlanError(
                    f"the plan splits the loss behind {name!r} along its classes, and this model's is not known to be "
                    "a cross entropy: a log softmax along the last axis of the logits, which nothing else reads, and a "
                    "mean or sum of likelihoods. Solve again for this model, or with --no-vocabulary-parallel"
                )
            try:
                words = self._words[name]
                words = words if mode and _has_all(words, program.graph) else _fitting(words, program.graph)
                self._layers[key] = MeshLayer(program, words, self._axes)
            except ValueError as error:
                raise PlanError(f"layer {name} cannot run as the plan has it: {error}; solve again") from error
        return self._layers[key]

    def wrapped(self, name: str, layer: nn.Module, _names: Mapping[str, str]) -> Callable[..., Any]:
        """Return a function to call in place of the layer, which has this process's parts of parameters."""
        there = dict(layer.named_parameters(remove_duplicate=False))
        for local, weight in self._layer(name, True).weights.items():
            if weight.summed:
                self._summed[there[local]] = weight.summed
        self.partial = MeshGradients(self._axes, self._summed) if self._summed else None
        self._last = layer
        setattr(layer, QUEUE, WeightQueue())  # a stage with split backwards puts its own there
        layer.forward = partial(self._call, name, layer)
        called: Callable[..., Any] = layer
        return called

    def _call(self, name: str, layer: nn.Module, *tensors: Tensor) -> tuple[Tensor, ...]:
        run = self._layer(name, layer.training)
        parameters = dict(layer.named_parameters(remove_duplicate=False))
        buffers = dict(layer.named_buffers(remove_duplicate=False))
        with torch.autocast(tensors[0].device.type, enabled=False):  # casts are among the calls
            return tuple(run(parameters, buffers, *tensors, queue=getattr(layer, QUEUE)))

    def loss(self, loss: Callable[..., Tensor], outputs: tuple[Tensor, ...], targets: Any) -> Tensor:
        """Return a loss of the stage's outputs, which every process has whole; or its classes of the logits."""
        if not self._head:
            return loss(outputs, targets)
        with torch.autocast(outputs[0].device.type, enabled=False):
            return self._at_the_end(targets).loss(outputs, tensors(targets))

    def gathered(self, outputs: tuple[Tensor, ...], for_loss: bool = False) -> tuple[Tensor, ...]:
        """Return the outputs of the stage; ``for_loss``: as `loss` gets them."""
        return outputs if for_loss or not self._head else tuple(self._at_the_end().outputs(outputs))

    def _at_the_end(self, targets: Batch | None = None) -> MeshLayer:
        """Return the layer whose loss is split, in the mode in which it was called last."""
        assert self._last is not None
        return self._layer(self._head, self._last.training, targets)

    def backward(self) -> AbstractContextManager[None]:
        """Context for a backward, and for its delayed weight gradients."""
        return nullcontext()


def _has_all(words: LayerWords, graph: OperatorGraph) -> bool:
    """Return whether words have all operators of a layer."""
    return words.operators.keys() >= {each.name for each in graph.operators}


def _fitting(words: LayerWords, graph: OperatorGraph) -> LayerWords:
    """Return what the words of a layer say of its operators in evaluation or mixed precision; others run whole.

    Without dropout, or where a tensor is cast, other operators read it; and attention may be one operator.
    """
    loops = {each.name: {UNSPLIT, *each.loops} for each in graph.operators}
    reads = {each.name: each.reads for each in graph.operators}
    known = {
        name: own
        for name, own in words.operators.items()
        if loops.get(name, set()).issuperset(e.loop for e in own.word)
    }
    copies: dict[str, Copy] = {}
    for source, copy in words.copies.items():
        readers = tuple(reader for reader in copy.readers if source in reads.get(reader, ()))
        copies |= {source: copy._replace(readers=readers)} if readers else {}
    return replace(words, operators=known, copies=copies)


def _program(
    name: str,
    layer: nn.Module,
    given: Sequence[Tensor],
    weights: Mapping[str, NamedWeight],
    context: Callable[[], AbstractContextManager[object]],
    mode: Mode,
    targets: Batch = (),
    loss: Loss | None = None,
) -> Program:
    """Return a layer's forward in a mode as a program, with its loss if there is one."""

    def compared(returned: Any, wanted: Batch) -> Tensor:
        assert loss is not None
        try:
            return loss(as_tuple(returned, name), wanted)
        except Exception as error:  # a loss may fail in any way without values
            raise PlanError(
                f"the plan splits the loss behind {name!r} along its classes, and it cannot be followed without "
                f"values: {error}. Solve with --no-vocabulary-parallel"
            ) from error

    before = {part: part.training for part in layer.modules()}
    layer.train(mode)
    try:
        own = record(layer, given, context, None if loss is None else compared, targets)
        found = program_of(own, weights, samples := given[0].shape[0])
        return replace(found, graph=by_samples(found.graph, samples))
    except UnfollowedError as error:
        raise PlanError(f"the operators of a layer cannot be followed, as the plan needs it: {error}") from error
    finally:
        for part, training in before.items():
            part.training = training
