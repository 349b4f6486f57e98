"""Example inputs at every micro-batch size: cut, repeated or drawn."""

from typing import Any

import torch

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
    return mapped(batch, lambda tensor: tensor.detach().to(device))


def _fitted(batch: Batch, size: int) -> Batch:
    """The first ``size`` samples, starting again from the first where there are too few."""
    count = samples(batch)
    if count == 0:
        raise InputError("example_inputs and targets need at least one sample; their first axis is empty")
    rounds = -(-size // count)
    return mapped(batch, lambda tensor: torch.cat([tensor] * rounds)[:size] if rounds > 1 else tensor[:size])
