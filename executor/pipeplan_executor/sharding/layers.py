"""`ShardedLayers`: calls of a stage's layers on a tensor-parallel group.

Layers with sharded parameters get whole tensors as DTensors.

::

    plain x ──▶ layer without shards ──▶ plain ──▶ layer with shards ──▶ plain, or a shard ──▶ … ──▶ plain, whole
                alike on every rank                DTensors inside

A layer whose parameters and inputs are whole runs on every tensor-parallel rank as it would in one process.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard
from torch.func import functional_call

from pipeplan.frontend.split_backward.queue import TAKER, plain
from pipeplan_executor.sharding.dispatch import ShardDispatch
from pipeplan_executor.sharding.parts import WHOLE, is_whole, local, mapped
from pipeplan_executor.sharding.shards import ParameterShard


class ShardedLayers:
    """Wrapper of a stage's layers for a tensor-parallel group.

    Parameters
    ----------
    mesh : DeviceMesh
        The tensor-parallel ranks.
    shards : mapping of str to ParameterShard
        The shards of this tensor-parallel rank, by names of the unsplit model.
    whole : bool
        Whether each layer's outputs are made whole, as plans with teams count them; else shards pass between layers.
    """

    def __init__(self, mesh: DeviceMesh, shards: Mapping[str, ParameterShard], whole: bool = False) -> None:
        self.dispatch = ShardDispatch(mesh)
        self._mesh, self._shards = mesh, shards
        self._outgoing = _gathered if whole else _plain_if_whole

    def wrapped(self, layer: nn.Module, names: Mapping[str, str]) -> Callable[..., Any]:
        """Return a function to call in place of the layer.

        ``names``: the names of its parameters in the unsplit model, by their names in the layer.
        """
        there = dict(layer.named_parameters(remove_duplicate=False))
        placements: dict[str, tuple[Placement, ...]] = {
            name: (Shard(self._shards[names[name]].axis),) if names.get(name) in self._shards else WHOLE
            for name in there
        }
        return partial(self._call, layer, placements, any(each != WHOLE for each in placements.values()))

    def _call(
        self, layer: nn.Module, placements: Mapping[str, tuple[Placement, ...]], is_sharded: bool, *tensors: Tensor
    ) -> Any:
        if not is_sharded and not any(isinstance(tensor, DTensor) for tensor in tensors):
            return layer(*tensors)
        there = dict(layer.named_parameters(remove_duplicate=False))
        with self.dispatch.during(forward=True):
            held = {name: self._stand_in(there[name], how) for name, how in placements.items()}
            given = tuple(self._as_dtensor(tensor, WHOLE) for tensor in tensors)
            return mapped(self._outgoing, functional_call(layer, held, given, tie_weights=False))

    def gathered(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the outputs of the stage as plain, whole tensors."""
        with self.dispatch.during(forward=True):
            return tuple(map(_gathered, tensors))

    def backward(self) -> AbstractContextManager[None]:
        """Context for a backward, and for its delayed weight gradients."""
        return self.dispatch.during(forward=False)

    def _as_dtensor(self, tensor: Tensor, placements: tuple[Placement, ...]) -> DTensor:
        if isinstance(tensor, DTensor):
            return tensor
        return DTensor.from_local(tensor, self._mesh, placements, run_check=False)

    def _stand_in(self, parameter: nn.Parameter, placements: tuple[Placement, ...]) -> DTensor:
        """Return the whole parameter as a DTensor for the layer.

        Its delayed weight gradient (`frontend.split_backward`) is added to the gradient of the shard.
        """
        stand_in = self._as_dtensor(parameter, placements)
        if plain(parameter):
            setattr(stand_in, TAKER, partial(_add, parameter, placements))
        return stand_in


def _add(parameter: nn.Parameter, placements: tuple[Placement, ...], gradient: DTensor) -> None:
    part = local(gradient, placements)
    if parameter.grad is None:
        parameter.grad = part.to(parameter.dtype, copy=True)
    else:
        parameter.grad.add_(part)


def _plain_if_whole(tensor: Tensor) -> Tensor:
    if isinstance(tensor, DTensor) and is_whole(tensor):
        return _as_plain(tensor)
    return tensor


def _gathered(tensor: Tensor) -> Tensor:
    return _as_plain(tensor.redistribute(placements=WHOLE)) if isinstance(tensor, DTensor) else tensor


def _as_plain(tensor: DTensor) -> Tensor:
    """Return the local tensor as a plain one.

    It is no view to autograd, which forbids in-place writes into a view that a function of torch's own made.
    """
    plain = tensor.to_local()
    return torch.ops.aten._unsafe_view(plain, plain.shape) if plain.requires_grad else plain
