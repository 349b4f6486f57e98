"""`slice_layers`: layers that run one slice of a sequence, again and again, for `pipeplan profile --slices`."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.core.strategies import LayerStrategies
from pipeplan.frontend.batch import Batch, mapped, tensors
from pipeplan.frontend.capture.flow import Tensors, trace
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.profile.passes import Loss
from pipeplan.frontend.profile.slices import Cut
from pipeplan.frontend.split_backward.attach import QUEUE
from pipeplan.frontend.split_backward.queue import WeightQueue
from pipeplan_executor.sharding.mesh.kept_keys import KeptKeys
from pipeplan_executor.sharding.mesh.layers import MeshLayers
from pipeplan_executor.sharding.mesh.moves import MeshAxes
from pipeplan_executor.stages.sliced_loss import SlicedLoss
from pipeplan_executor.stages.slices import flow_in_slices


@dataclass
class _Lasting(KeptKeys):
    """Keys and values that stay for the next pass, with the room for their gradients, which a sequence takes once."""

    def drop(self, attention: Any) -> None:
        """Keep them."""


class SliceLayer(nn.Module):
    """A layer that runs on one slice; what the slices before it leave is made by a first call, from its own input.

    Parameters
    ----------
    layer : torch.nn.Module
        Stays as it is.
    mesh : MeshLayers
        Of one process, and the slices ahead and this one; calls the layer by its ``name``.
    axes : sequence of int or None
        The axis of tokens of each input that comes in slices.
    cut : Cut
    """

    def __init__(self, layer: nn.Module, mesh: MeshLayers, name: str, axes: Sequence[int | None], cut: Cut) -> None:
        super().__init__()
        self.layer, self._mesh, self._name, self._axes, self._cut = layer, mesh, name, axes, cut
        self._begun = cut.number == 0
        setattr(self, QUEUE, WeightQueue())  # a pass with split backwards puts its own there

    def forward(self, *given: Tensor) -> Tensors:
        """Return the layer's outputs for the slice."""
        if not self._begun:
            self._begun = True
            before = (_stretched(t, axis, self._cut.tokens[0]) for t, axis in zip(given, self._axes, strict=True))
            with torch.no_grad():
                self._run(0, *before)
        return self._run(self._cut.number, *given)

    def _run(self, number: int, *given: Tensor) -> Tensors:
        self._mesh.at(0, number)
        return self._mesh.called(self._name, self.layer, getattr(self, QUEUE), *given)


def _stretched(tensor: Tensor, axis: int | None, length: int) -> Tensor:
    """Return a tensor of this length along an axis, which repeats or ends early."""
    if axis is None:
        return tensor
    return tensor.index_select(axis, torch.arange(length, device=tensor.device) % tensor.shape[axis])


def slice_layers(
    module: nn.Module,
    sequence: LayerSequence,
    inputs: Batch,
    targets: Any,
    loss: Loss | None,
    cuts: Sequence[Cut],
    context: Callable[[], AbstractContextManager[object]],
) -> list[tuple[tuple[nn.Module, ...], Loss | None]]:
    """Return layers that run each slice, as a stage does; see `pipeplan.frontend.profile.slices.SliceRunner`.

    Raises
    ------
    PlanError
        If the model cannot run in slices, with the operator and its line.
    """
    flow = trace(sequence, inputs)
    wanted = () if targets is None else mapped(targets, lambda tensor: tensor.to("meta"))

    def compared(outputs: Tensors, own: Batch) -> Tensor:
        assert loss is not None
        found: Tensor = loss(outputs[0] if flow.bare else outputs, own)
        return found

    known = flow_in_slices(cuts[0].tokens, module, sequence, flow.tensors, context) if cuts else None
    strategies = dict.fromkeys(sequence.names, LayerStrategies())
    found: list[tuple[tuple[nn.Module, ...], Loss | None]] = []
    for cut in cuts:
        assert known is not None
        own = replace(known, tokens=cut.tokens)
        mesh = MeshLayers(module, sequence, flow.tensors, strategies, MeshAxes(None), {}, context, slices=own)
        mesh.keys = _Lasting(cut.tokens)
        layers = tuple(
            SliceLayer(layer, mesh, name, axes, cut)
            for name, layer, axes in zip(sequence.names, sequence.layers, own.axes[:-1], strict=True)
        )
        ends = None
        if loss is not None:
            ends = partial(
                _added, SlicedLoss(compared, flow.tensors[-1], wanted, own.axes[-1], cut.tokens, context), cut
            )
        found.append((layers, ends))
    return found


def _added(loss: SlicedLoss, cut: Cut, outputs: Tensors, targets: Batch) -> Tensor:
    """Return what the slice adds to the loss."""
    return loss(tensors(outputs), targets, cut.number)
