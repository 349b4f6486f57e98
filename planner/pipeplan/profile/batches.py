"""Example inputs at every micro-batch size: cut, repeated or drawn."""

from typing import Any

import torch

from pipeplan.errors import InputError
from pipeplan.profile.layers import one_tensor


def batch_of(example_inputs: Any, targets: Any, samples: int, device: torch.device) -> tuple[torch.Tensor, Any]:
    """``samples`` samples and their targets, on ``device``.

    Parameters
    ----------
    example_inputs : tensor, tuple of one tensor, or callable
        See `pipeplan.profile.profile`.
    targets : tensor or None
        Ignored where ``example_inputs`` draws pairs.
    """
    if callable(example_inputs):
        drawn = example_inputs(samples)
        if isinstance(drawn, tuple | list) and len(drawn) == 2:
            drawn, targets = drawn
        inputs = one_tensor(drawn)
        if inputs.ndim == 0 or len(inputs) != samples:
            shape = tuple(inputs.shape)
            raise InputError(f"example_inputs({samples}) returned shape {shape}; the first axis must count {samples}")
    else:
        inputs = fit(one_tensor(example_inputs), samples)
    if isinstance(targets, torch.Tensor):
        targets = fit(targets, samples).to(device)
    return inputs.detach().to(device), targets


def fit(tensor: torch.Tensor, samples: int) -> torch.Tensor:
    """The first ``samples`` entries, starting again from the first where there are too few."""
    if tensor.ndim == 0 or len(tensor) == 0:
        raise InputError(f"example_inputs has shape {tuple(tensor.shape)}; its first axis must count the samples")
    rounds = -(-samples // len(tensor))
    return torch.cat([tensor] * rounds)[:samples] if rounds > 1 else tensor[:samples]
