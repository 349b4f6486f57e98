"""Passes through a sequence of layers, each as on a rank of its own, and differences of results."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.frontend.batch import tensors
from pipeplan.frontend.capture import LayerSequence


def pass_through(sequence: LayerSequence, inputs: Any, loss_of: Callable[[Any], Tensor]) -> Tensor:
    """Forward and backward of each layer on its own, as on ranks of their own: tensors are sent, not shared."""
    given = tensors(inputs)
    tape: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = []
    for layer in sequence.layers:
        leaves = sent(given)
        made = layer(*leaves)
        given = made if isinstance(made, tuple) else (made,)
        tape.append((leaves, given))
    leaves = sent(given)
    loss = loss_of(sequence.restore(leaves))
    loss.backward()
    gradients = [leaf.grad for leaf in leaves]
    for leaves, made in reversed(tape):
        pairs = [(a, b) for a, b in zip(made, gradients, strict=True) if a.requires_grad and b is not None]
        torch.autograd.backward([a for a, _ in pairs], [b for _, b in pairs])
        gradients = [leaf.grad for leaf in leaves]
    return loss.detach()


def sent(values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Copies as received by another rank: contiguous, each a leaf of a new graph."""
    return tuple(
        value.detach().clone(memory_format=torch.contiguous_format).requires_grad_(value.requires_grad)
        for value in values
    )


def differences(module: nn.Module, whole: nn.Module) -> Iterator[float]:
    """Relative difference of every gradient and every buffer; a missing gradient counts as zero."""
    for (name, ours), (_, theirs) in zip(module.named_parameters(), whole.named_parameters(), strict=True):
        found = torch.zeros_like(ours) if ours.grad is None else ours.grad
        expected = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
        assert found.shape == expected.shape, name
        yield relative(found, expected)
    for (_, ours), (_, theirs) in zip(module.named_buffers(), whole.named_buffers(), strict=True):
        yield relative(ours, theirs)


def relative(found: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest expected number (at least 1e-12, for zero gradients)."""
    if found.numel() == 0:
        return 0.0
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).abs().max()) / max(float(expected.abs().max()), 1e-12)
