"""All uses of parts of torch that are not public, which a new release may move; and modules without values.

`torch.export` hands out fake tensors, trees and operators, but their modules have names with underscores.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree


def memory_of(tensor: Tensor) -> Any:
    """A key of the memory that a tensor lies in, with or without values; the same for views of one another."""
    return tensor.untyped_storage()._cdata


__all__ = ["FakeTensor", "FakeTensorMode", "OpOverload", "memory_of", "pytree"]


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
