"""Modules without values: only shapes and types are needed to describe one."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from pipeplan.frontend.capture.private import FakeTensorMode


def on_meta(module: nn.Module) -> nn.Module:
    """A copy on the meta device; the original's weights are not copied even for a moment."""
    return _with(module, lambda tensor: tensor.detach().to("meta"))


def on_fake(module: nn.Module, mode: FakeTensorMode, device: torch.device | str) -> nn.Module:
    """A copy whose tensors say that they lie on the device, which need not be there, and have no values.

    On the meta device some models compute something else, or nothing; so captured models are on a fake CPU.
    """
    return _with(module, lambda tensor: fake(tensor, mode, device))


def fake(tensor: Tensor, mode: FakeTensorMode, device: torch.device | str) -> Tensor:
    """A stand-in of the same shape, strides and type."""
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _with(module: nn.Module, stand_in: Callable[[Tensor], Tensor]) -> nn.Module:
    stand_ins: dict[int, object] = {}
    for parameter in module.parameters():
        stand_ins[id(parameter)] = nn.Parameter(stand_in(parameter), parameter.requires_grad)
    for buffer in module.buffers():
        stand_ins[id(buffer)] = stand_in(buffer)
    return copy.deepcopy(module, stand_ins)
