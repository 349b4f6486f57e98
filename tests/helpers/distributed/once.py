"""Checks of modules that are not repeated for like ones: on ranks that run many plans of few models they cost most."""

from collections.abc import Callable, Hashable
from functools import wraps
from typing import TypeVar

import torch
from torch import nn

from pipeplan.frontend.batch import Batch, tensors
from pipeplan.frontend.capture import flow, front_ends

Found = TypeVar("Found")


def check_once() -> None:
    """Find layers, and call one twice, once in this process for modules of the same types, sizes and inputs."""
    front_ends.find_layers = _once(front_ends.find_layers)
    flow.differs_each_time = _once(flow.differs_each_time)


def _once(check: Callable[..., Found]) -> Callable[..., Found]:
    known: dict[Hashable, Found] = {}

    @wraps(check)
    def found(module: nn.Module, inputs: Batch, **options: Hashable) -> Found:
        key = _kind(module), *map(_size, tensors(inputs)), *options.items()
        if key not in known:
            known[key] = check(module, inputs, **options)
        return known[key]

    return found


def _kind(module: nn.Module) -> Hashable:
    """What modules have in common that compute the same with other weights."""
    parts = tuple((name, type(part), part.extra_repr(), part.training) for name, part in module.named_modules())
    return parts, tuple((name, *_size(tensor)) for name, tensor in module.state_dict().items())


def _size(tensor: torch.Tensor) -> tuple[Hashable, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.device.type
