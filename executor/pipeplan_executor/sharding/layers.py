"""`ShardedLayers`: calls of a stage's layers on a team; layers with cut parameters get whole tensors as DTensors.

::

    plain x ──▶ layer without cuts ──▶ plain ──▶ layer with cuts ──▶ plain, or a part ──▶ … ──▶ plain, whole
                every member alike               DTensors inside

A layer whose parameters and inputs are whole runs as it would in one process, on every member.
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
from pipeplan_executor.sharding.parts import WHOLE, is_whole, local, mapped
from pipeplan_executor.sharding.placing import Placing
from pipeplan_executor.sharding.shards import ParameterShard


class ShardedLayers:
    """What a stage does for its layers on a team.

    Parameters
    ----------
    mesh : DeviceMesh
        The members.
    cuts : mapping of str to ParameterShard
        This member's parts, by names of the unsplit model.
    """

    def __init__(self, mesh: DeviceMesh, cuts: Mapping[str, ParameterShard]) -> None:
        self.placing = Placing(mesh)
        self._mesh, self._cuts = mesh, cuts

    def called(self, layer: nn.Module, names: Mapping[str, str]) -> Callable[..., Any]:
        """What stands for a call of the layer; ``names`` are those of its parameters in the unsplit model."""
        there = dict(layer.named_parameters(remove_duplicate=False))
        placements: dict[str, tuple[Placement, ...]] = {
            name: (Shard(self._cuts[names[name]].axis),) if names.get(name) in self._cuts else WHOLE for name in there
        }
        return partial(self._call, layer, placements, any(each != WHOLE for each in placements.values()))

    def _call(
        self, layer: nn.Module, placements: Mapping[str, tuple[Placement, ...]], is_cut: bool, *tensors: Tensor
    ) -> Any:
        if not is_cut and not any(isinstance(tensor, DTensor) for tensor in tensors):
            return layer(*tensors)
        there = dict(layer.named_parameters(remove_duplicate=False))
        with self.placing.during(forward=True):
            held = {name: self._stand_in(there[name], how) for name, how in placements.items()}
            given = tuple(self._on_team(tensor, WHOLE) for tensor in tensors)
            return mapped(_plain_if_whole, functional_call(layer, held, given, tie_weights=False))

    def end(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What leaves the stage: plain and whole."""
        with self.placing.during(forward=True):
            return tuple(map(_gathered, tensors))

    def backward(self) -> AbstractContextManager[None]:
        """Around a backward, and around what it leaves for later."""
        return self.placing.during(forward=False)

    def _on_team(self, tensor: Tensor, placements: tuple[Placement, ...]) -> DTensor:
        if isinstance(tensor, DTensor):
            return tensor
        return DTensor.from_local(tensor, self._mesh, placements, run_check=False)

    def _stand_in(self, parameter: nn.Parameter, placements: tuple[Placement, ...]) -> DTensor:
        """The whole parameter for the layer; its delayed gradient (`frontend.split_backward`) comes to the part."""
        stand_in = self._on_team(parameter, placements)
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
        return _left(tensor)
    return tensor


def _gathered(tensor: Tensor) -> Tensor:
    return _left(tensor.redistribute(placements=WHOLE)) if isinstance(tensor, DTensor) else tensor


def _left(tensor: DTensor) -> Tensor:
    """The plain tensor; no view to autograd, which lets nobody write into one that a function of torch's own made."""
    plain = tensor.to_local()
    return torch.ops.aten._unsafe_view(plain, plain.shape) if plain.requires_grad else plain
