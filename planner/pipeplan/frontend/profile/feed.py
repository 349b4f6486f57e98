"""Example inputs at every micro-batch size, and layers moved to the measured device and restored afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pipeplan.core.errors import InputError
from pipeplan.frontend.batch import Batch, mapped, samples, tensors


def batch_of(example_inputs: Any, targets: Any, size: int, device: torch.device) -> tuple[Batch, Any]:
    """``size`` samples and their targets, on ``device``.

    Parameters
    ----------
    example_inputs : batch or callable
        See `pipeplan.profile.profile`.
    targets : batch or None
        Those of ``example_inputs``, unless it draws pairs.
    """
    fitted = None if targets is None else _fitted(targets, size)
    if callable(example_inputs):
        inputs = example_inputs(size)
        if isinstance(inputs, tuple | list) and len(inputs) == 2:
            inputs, fitted = inputs
        if samples(inputs) != size:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors(inputs))
            raise InputError(f"example_inputs({size}) returned shape {shapes}; the first axis must count {size}")
    else:
        inputs = _fitted(example_inputs, size)
    return _on(inputs, device), None if fitted is None else _on(fitted, device)


def _on(batch: Batch, device: torch.device) -> Batch:
    return mapped(batch, lambda tensor: _alone(tensor.detach().to(device)))


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a view, whose storage would count whole."""
    is_view = tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
    return tensor.clone() if is_view else tensor


def _fitted(batch: Batch, size: int) -> Batch:
    """The first ``size`` samples, repeated from the first if there are too few."""
    count = samples(batch)
    if count == 0:
        raise InputError("example_inputs and targets need at least one sample; their first axis is empty")
    rounds = -(-size // count)
    return mapped(batch, lambda tensor: torch.cat([tensor] * rounds)[:size] if rounds > 1 else tensor[:size])


def is_on(module: nn.Module, device: torch.device) -> bool:
    """True if every parameter and buffer is on the device (and for a module without any)."""
    return all(tensor.device.type == device.type for tensor in (*module.parameters(), *module.buffers()))


@contextmanager
def on_device(layer: nn.Module, device: torch.device) -> Iterator[None]:
    """Context in which one layer's parameters and buffers are on the device; the layer's own return afterwards.

    Tensors on ``meta`` have no values. Modules then draw their own with ``reset_parameters``. Tensors that no such
    method covers are filled: parameters with small random numbers, buffers with zeros (a mask that masks nothing,
    position 0).
    """
    kept: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]] = []
    twins: dict[int, torch.Tensor] = {}
    try:
        for module in layer.modules():
            bare = False
            for store in (module._parameters, module._buffers):
                for name, tensor in store.items():
                    if tensor is None or tensor.device.type == device.type:
                        continue
                    kept.append((store, name, tensor))
                    bare |= tensor.is_meta
                    if id(tensor) not in twins:
                        twins[id(tensor)] = _copy_on(tensor, device)
                    store[name] = twins[id(tensor)]
            if bare:
                _draw(module)
        yield
    finally:
        for store, name, tensor in kept:
            store[name] = tensor


def _copy_on(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy of the tensor on the device: its values, or small random numbers or zeros if it has none."""
    if not tensor.is_meta:
        twin = tensor.detach().to(device)
    else:
        twin = torch.zeros_like(tensor, device=device)
        if isinstance(tensor, nn.Parameter) and twin.is_floating_point():
            twin.normal_(0.0, 0.02)
    return nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin


def _draw(module: nn.Module) -> None:
    for name in ("reset_parameters", "_reset_parameters"):
        reset = getattr(module, name, None)
        if callable(reset):
            with torch.no_grad():
                reset()
            return


@contextmanager
def preserved(module: nn.Module) -> Iterator[None]:
    """Context that restores gradients, buffers and the random state of a module afterwards."""
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers() if not buffer.is_meta]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        with torch.random.fork_rng(), torch.enable_grad():
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, values in buffers:
                buffer.copy_(values)
