"""`MeshLayers`: calls of a stage's layers on a mesh of processes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.core.errors import PlanError
from pipeplan.core.operators import TOKEN, OperatorGraph
from pipeplan.core.strategies import UNSPLIT, WHOLE, Copy, LayerStrategies, Placements, splits
from pipeplan.costs.sharding.signatures import with_fitting_ends
from pipeplan.frontend.batch import Batch, tensors
from pipeplan.frontend.capture.flow import as_tuple
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.operators.find import named_weights
from pipeplan.frontend.operators.program import Program
from pipeplan.frontend.split_backward.attach import QUEUE
from pipeplan.frontend.split_backward.queue import WeightQueue
from pipeplan_executor.sharding.mesh.gradients import MeshGradients
from pipeplan_executor.sharding.mesh.kept_keys import KeptKeys
from pipeplan_executor.sharding.mesh.moves import MeshAxes, TokenCut
from pipeplan_executor.sharding.mesh.programs import Loss, Mode, program
from pipeplan_executor.sharding.mesh.run import MeshLayer
from pipeplan_executor.sharding.mesh.sliced_layer import SlicedFlow, SlicedLayer, token_dimensions
from pipeplan_executor.sharding.mesh.weights import MeshWeight
from pipeplan_executor.sharding.mesh.whole import Use, entered, left
from pipeplan_executor.sharding.private import replaced_parameters
from pipeplan_executor.sharding.shards import ParameterShard


class MeshLayers:
    """Layers of a model on a mesh, as their strategies say.

    Parameters
    ----------
    blank : torch.nn.Module
        The unsplit model on the meta device.
    sequence : LayerSequence
        Its layers, also there.
    flow : sequence of sequence of Tensor
        Inputs of the first layer, then outputs of each layer: of a micro-batch, on the meta device.
    strategies : mapping of str to LayerStrategies
        Of the layers of one stage, by name.
    axes : MeshAxes
    kept : mapping of str to ParameterShard
        The parts that this process keeps of parameters that their strategies do not split, by each of their names in
        the unsplit model; they are gathered for each pass of a layer.
    context : callable
        Context of forward and loss, for mixed precision.
    loss : callable, optional
        ``loss(outputs, targets)`` of the last layer; needed if the strategies split its operators.
    targets : Batch
        Of a micro-batch, on the meta device.
    slices : SlicedFlow, optional
        How sequences are cut.
    earlier : MeshLayers, optional
        Those of an earlier stage of this process, which has its parameters in common with this one. All are made before
        the first layer is wrapped.

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
        strategies: Mapping[str, LayerStrategies],
        axes: MeshAxes,
        kept: Mapping[str, ParameterShard],
        context: Callable[[], AbstractContextManager[object]] = nullcontext,
        loss: Loss | None = None,
        targets: Batch = (),
        slices: SlicedFlow | None = None,
        earlier: "MeshLayers | None" = None,
    ) -> None:
        self.shards: dict[str, ParameterShard] = {}
        self.cuts: dict[str, frozenset[int]] = {}
        self.partial: MeshGradients | None = None
        self._axes, self._strategies, self._kept = axes, strategies, kept
        self._slices, self._cuts = slices, dict[str, Sequence[int | None]]()
        self.keys = None if slices is None else KeptKeys(slices.tokens)
        self._head, self._targets = "", targets  # the layer whose loss is split, if any is
        self._last: nn.Module | None = None
        self._summed: dict[nn.Parameter, tuple[int, ...]] = {}
        # by parameter, axes along which any layer's gradients are parts; its part here, and a layer that has it
        self._sums: dict[int, frozenset[int]] = {} if earlier is None else earlier._sums
        self._known: dict[int, tuple[ParameterShard | None, str]] = {} if earlier is None else earlier._known
        weights = named_weights(blank, sequence)
        self._programs: dict[str, Callable[..., Program]] = {}
        self._layers: dict[tuple[object, ...], MeshLayer] = {}
        self._parameters = dict(blank.named_parameters(remove_duplicate=False))
        self._aliases: dict[int, list[str]] = {}
        for name, parameter in self._parameters.items():
            self._aliases.setdefault(id(parameter), []).append(name)
        for number, (name, layer) in enumerate(zip(sequence.names, sequence.layers, strict=True)):
            if name in strategies:
                if slices is not None or not runs_whole(strategies[name]):
                    self._programs[name] = partial(program, name, layer, flow[number], weights[number], context)
                if slices is not None:
                    self._cuts[name] = slices.axes[number]
                    self._programs[name] = partial(slices.program, name, self._programs[name], number)
                elif (
                    name in self._programs
                    and name == sequence.names[-1]
                    and loss is not None
                    and self._splits_more(name)
                ):
                    self._head, self._programs[name] = name, partial(self._programs[name], loss=loss)
                self._place(name, sequence.parameters[number])

    def _splits_more(self, name: str) -> bool:
        """Return whether strategies split operators that a layer has not by itself: those of its loss."""
        known = {each.name for each in self._programs[name](True).graph.operators}
        return any(splits(own.strategy) for each, own in self._strategies[name].operators.items() if each not in known)

    def _place(self, name: str, names: Mapping[str, str]) -> None:
        """Note the parts of a layer's parameters."""
        weights = self._weights(name)
        for local, full in names.items():
            if full not in self._parameters:
                continue
            weight, kept = weights.get(local), self._kept.get(full)
            if weight is None and kept is None and name in self._programs:
                continue
            shard = weight.shard(self._axes) if kept is None and weight is not None else kept
            place = id(self._parameters[full])
            known, other = self._known.setdefault(place, (shard, name))
            if known != shard:
                raise PlanError(
                    f"layers {other} and {name} share {full}, and the plan splits it in unlike ways; solve again"
                )
            if weight is not None and kept is None:
                self._sums[place] = self._sums.get(place, frozenset()) | {*weight.summed}
            if shard is not None:
                cuts = {0} if weight is None or kept is not None else {cut.axis for cut in weight.cuts}
                for alias in self._aliases[place]:
                    self.shards[alias], self.cuts[alias] = shard, frozenset(cuts)

    def _weights(self, name: str) -> Mapping[str, MeshWeight]:
        return self._layer(name, True).weights if name in self._programs else {}

    def _layer(self, name: str, mode: Mode, targets: Batch | None = None) -> MeshLayer:
        """Return a layer in a mode; with a split loss, for targets of these shapes."""
        wanted = self._targets if targets is None else targets
        shapes = [(tuple(each.shape), each.dtype) for each in tensors(wanted)] if name == self._head else []
        number = 0 if self.keys is None else self.keys.number
        key = name, mode, number, *shapes
        if key not in self._layers:
            found = self._programs[name](mode, wanted)
            if name == self._head and found.graph.loss is None:
                raise PlanError(
                    f"the plan splits the loss behind {name!r} along its classes, and this model's is not known to be "
                    "a cross entropy: a log softmax along the last axis of the logits, which nothing else reads, and a "
                    "mean or sum of likelihoods, without random numbers. Solve again for this model, or with "
                    "--no-vocabulary-parallel"
                )
            try:
                self._layers[key] = self._made(name, found, mode)
            except ValueError as error:
                raise PlanError(f"layer {name} cannot run as the plan has it: {error}; solve again") from error
        return self._layers[key]

    def _made(self, name: str, found: Program, mode: Mode) -> MeshLayer:
        strategies = with_fitting_ends(found.graph, self._strategies[name], self._axes.sizes)
        is_exact = mode and _has_all(strategies, found.graph) and self._slices is None
        strategies = strategies if is_exact else _fitting(strategies, found.graph)
        if self._slices is None or self.keys is None:
            return MeshLayer(found, strategies, self._axes)
        self._check_team(name, found, strategies, self.keys.tokens)
        tokens = token_dimensions(found, self._cuts[name])
        axes = self._axes.sliced(TokenCut(self.keys.tokens, self.keys.number), self.keys, name)
        return MeshLayer(found, strategies, axes, SlicedLayer(found.graph, strategies, len(self._axes.sizes), tokens))

    def _check_team(self, name: str, found: Program, strategies: LayerStrategies, tokens: tuple[int, ...]) -> None:
        """Refuse what a team cannot do with the tokens of a slice."""
        for each in found.graph.operators:
            entries = strategies.operators[each.name].strategy if each.name in strategies.operators else ()
            along = [axis for axis, entry in enumerate(entries) if entry.loop == TOKEN]
            if along and each.attention is not None:
                raise PlanError(
                    f"the plan splits attention of {name} along tokens in a team, and cuts sequences into slices; both "
                    "together do not run: plan with --no-context-parallel"
                )
            odd = [count for count in tokens if count % prod(self._axes.sizes[axis] for axis in along)]
            if odd:
                raise PlanError(
                    f"slices of {odd[0]} tokens cannot be split in a team, as the plan has it for layer {name}; cut "
                    "sequences into slices whose tokens teams divide, or plan with --no-sequence-parallel"
                )

    def at(self, micro_batch: int, part: int) -> None:
        """Begin an action of a slice of a micro-batch."""
        if self.keys is not None:
            self.keys.micro_batch, self.keys.number = micro_batch, part

    def forget(self) -> None:
        """Drop what an earlier step left."""
        if self.keys is not None:
            self.keys.clear()

    def wrapped(self, name: str, layer: nn.Module, names: Mapping[str, str]) -> Callable[..., Any]:
        """Return a function to call in place of the layer, which has this process's parts of parameters."""
        weights, uses = self._weights(name), dict[str, Use]()
        for local, parameter in layer.named_parameters(remove_duplicate=False):
            full = names.get(local, "")
            if full in self._parameters:
                summed = weights[local].summed if local in weights else ()
                every, kept = self._sums.get(id(self._parameters[full]), frozenset()), self._kept.get(full)
                use = Use(kept, bool(summed), tuple(every - {*summed}) if kept is None else ())
                if use.kept is not None or use.once:
                    uses[local] = use
                if kept is None and every:
                    self._summed[parameter] = tuple(sorted(every))
        self.partial = MeshGradients(self._axes, self._summed) if self._summed else None
        self._last = layer
        if name in self._programs:
            setattr(layer, QUEUE, WeightQueue())  # a stage with split backwards puts its own there
            layer.forward = partial(self._call, name, layer, uses)
        else:
            run = layer.__dict__.get("forward", partial(_forward, layer))
            layer.forward = partial(self._call_whole, name, layer, uses, run)
        called: Callable[..., Any] = layer
        return called

    def _call(self, name: str, layer: nn.Module, uses: Mapping[str, Use], *tensors: Tensor) -> tuple[Tensor, ...]:
        run, strategies = self._layer(name, layer.training), self._strategies[name]
        before, after = (
            (one if one != own else ()) for one, own in zip(_ends(strategies), _ends(run.strategies), strict=True)
        )
        given, parameters = entered(tensors, before, self._axes), self._used(layer, uses)
        return left(_run(run, parameters, layer, given, getattr(layer, QUEUE)), after, self._axes)

    def called(self, name: str, layer: nn.Module, queue: WeightQueue, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Call a layer of a process alone, which stays as it is; weight gradients wait in an open queue."""
        parameters = dict(layer.named_parameters(remove_duplicate=False))
        return tuple(_run(self._layer(name, layer.training), parameters, layer, tensors, queue))

    def _call_whole(
        self, name: str, layer: nn.Module, uses: Mapping[str, Use], run: Callable[..., Any], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        strategies = self._strategies[name]
        with replaced_parameters(layer, self._used(layer, uses)) if uses else nullcontext():
            made = run(*entered(tensors, strategies.input, self._axes))
        return left(as_tuple(made, name), strategies.output, self._axes)

    def _used(self, layer: nn.Module, uses: Mapping[str, Use]) -> dict[str, Tensor]:
        """Return a layer's parameters as it gets them, by their names in it."""
        found = dict(layer.named_parameters(remove_duplicate=False))
        return {name: uses[name].of(each, self._axes) if name in uses else each for name, each in found.items()}

    def loss(self, loss: Callable[..., Tensor], outputs: tuple[Tensor, ...], targets: Any) -> Tensor:
        """Return a loss of the stage's outputs, which every process has whole; or its classes of the logits."""
        if self._slices is not None and self._slices.loss is not None and self.keys is not None:
            return self._slices.loss(outputs, targets, self.keys.number)
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


def _run(
    run: MeshLayer, parameters: Mapping[str, Tensor], layer: nn.Module, given: Sequence[Tensor], queue: WeightQueue
) -> list[Tensor]:
    buffers = dict(layer.named_buffers(remove_duplicate=False))
    with torch.autocast(given[0].device.type, enabled=False):  # casts are among the calls
        return run(parameters, buffers, *given, queue=queue)


def runs_whole(strategies: LayerStrategies) -> bool:
    """Return whether every process runs a layer as one, whatever its operators are."""
    return not strategies.splits_any and (
        not strategies.operators or all(placement == WHOLE for placement in (*strategies.input, *strategies.output))
    )


def _has_all(strategies: LayerStrategies, graph: OperatorGraph) -> bool:
    """Return whether strategies have all operators of a layer."""
    return strategies.operators.keys() >= {each.name for each in graph.operators}


def _fitting(strategies: LayerStrategies, graph: OperatorGraph) -> LayerStrategies:
    """Return what the strategies of a layer say of its operators in evaluation or mixed precision; others run whole.

    Without dropout, or where a tensor is cast, other operators read it; and attention may be one operator.
    """
    loops = {each.name: {UNSPLIT, *each.loops} for each in graph.operators}
    reads = {each.name: each.reads for each in graph.operators}
    known = {
        name: own
        for name, own in strategies.operators.items()
        if loops.get(name, set()).issuperset(e.loop for e in own.strategy)
    }
    copies: dict[str, Copy] = {}
    for source, copy in strategies.copies.items():
        readers = tuple(reader for reader in copy.readers if source in reads.get(reader, ()))
        copies |= {source: copy._replace(readers=readers)} if readers else {}
    return replace(strategies, operators=known, copies=copies)


def _forward(layer: nn.Module, *tensors: Tensor) -> Any:
    """Call the forward of a layer's class, which a split backward may replace."""
    return type(layer).forward(layer, *tensors)


def _ends(strategies: LayerStrategies) -> tuple[Placements, Placements]:
    return strategies.input, strategies.output
