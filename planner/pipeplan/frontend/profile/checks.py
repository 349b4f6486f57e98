"""Checks of a module with its values, before and after it is measured: its captured gradients, and its loss."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.frontend.batch import Batch, call, split, tensors
from pipeplan.frontend.batch_mean import batch_mean
from pipeplan.frontend.capture.draws import RepeatedDraws
from pipeplan.frontend.capture.graph.export import READS_KEPT
from pipeplan.frontend.capture.graph.gradients import LostInCaptureError
from pipeplan.frontend.capture.graph.layer import GraphLayer
from pipeplan.frontend.capture.layer_sequence import LayerSequence
from pipeplan.frontend.capture.private import FakeTensor, pytree
from pipeplan.frontend.rewind import Rewind

Loss = Callable[[Any, Any], Any]
_APART, _SMALL = 1e-2, 1e-3
"""Relative difference of gradients that is no rounding, relative to at least this part of the largest gradient."""


def check_gradients(module: nn.Module, sequence: LayerSequence, inputs: Batch, targets: Any, loss: Loss | None) -> None:
    """Refuse a captured graph whose gradients are not the module's own, for reasons that nothing else has shown.

    Both run once on the batch, in their own number format, without dropout. A module that differs from itself is left
    alone.

    Raises
    ------
    LostInCaptureError
        With the parameter and the difference.
    """
    if not all(isinstance(layer, GraphLayer) for layer in sequence.layers):
        return

    def through(batch: Batch) -> Any:
        values = tensors(batch)
        for layer in sequence.layers:
            made = layer(*values)
            values = made if isinstance(made, tuple) else (made,)
        return sequence.restore(made)

    def gradients(forward: Callable[[Batch], Any], rewind: Rewind) -> dict[str, Tensor | None]:
        wanted = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        rewind.back()
        try:
            with RepeatedDraws():
                made = forward(inputs)
                root = _any_loss(made) if loss is None else loss(made, targets)
                if not root.requires_grad:
                    return dict.fromkeys(wanted)
                found = torch.autograd.grad(root, list(wanted.values()), allow_unused=True)
        finally:
            rewind.end()
        return dict(zip(wanted, found, strict=True))

    whole = partial(gradients, partial(call, module), Rewind([module], [module]))
    own = whole()
    if any(isinstance(gradient, FakeTensor) for gradient in own.values()):  # from a capture, by a cache
        raise LostInCaptureError(f"{type(module).__name__} cannot be captured: {READS_KEPT}")
    apart, name = _farthest(gradients(through, Rewind(sequence.layers)), own)
    if apart > _APART and _farthest(whole(), own)[0] <= _APART / 10:
        raise LostInCaptureError(
            f"{type(module).__name__}: the gradient of {name} in the captured graph differs from the module's own by "
            f"{apart:.0%}, so a plan would train something else. Make the module a chain, or give stage modules of "
            "your own with Stages: they run as they stand"
        )


def _any_loss(made: Any) -> Tensor:
    """Return a number that depends on all outputs in unlike ways."""
    leaves = [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, Tensor) and leaf.requires_grad]
    numbers = (torch.linspace(-1, 1, leaf.numel(), device=leaf.device).view_as(leaf) for leaf in leaves)
    if not leaves:
        return torch.zeros(())
    return torch.stack([(leaf.real * number).sum() for leaf, number in zip(leaves, numbers, strict=True)]).sum()


def _farthest(found: dict[str, Tensor | None], own: dict[str, Tensor | None]) -> tuple[float, str]:
    """Return the largest relative difference of two sets of gradients, and the parameter's name."""
    sizes = {name: 0.0 if gradient is None else _size(gradient) for name, gradient in own.items()}
    least = max(_SMALL * max(sizes.values(), default=0.0), 1e-30)
    farthest = (0.0, "")
    for name, gradient in own.items():
        other = found[name]
        if gradient is None or other is None:
            apart = _size(gradient if other is None else other) if (gradient is None) != (other is None) else 0.0
        else:
            apart = _size(other.to_dense() - gradient.to_dense() if gradient.is_sparse else other - gradient)
        farthest = max(farthest, (apart / max(sizes[name], least), name))
    return farthest


def _size(gradient: Tensor | None) -> float:
    if gradient is None or not gradient.numel():
        return 0.0
    return float((gradient.to_dense() if gradient.is_sparse else gradient).abs().max())


def changed_by_micro_batches(
    module: nn.Module, batch: tuple[Batch, Any], size: int, loss: Loss, weight: Callable[[Any], float] | None
) -> str:
    """Return what plans change in the training of a module whose loss is no mean over samples; empty if nothing.

    Parameters
    ----------
    batch : tuple of batch
        Inputs and targets of several micro-batches.
    size : int
        Samples of a micro-batch.
    weight : callable, optional
        See `frontend.workload.Workload`.
    """
    inputs, targets = batch
    formats = {parameter.dtype for parameter in module.parameters()}
    tolerance = 1e-2 if formats & {torch.float16, torch.bfloat16} else 1e-4
    with suppress(Exception):  # a loss or module that fails on another size fails when it is measured
        parts = split(inputs, size)
        counts = [1.0] * len(parts) if weight is None else [float(weight(part)) for part in split(targets, size)]
        shares = [count / sum(counts) for count in counts]
        return batch_mean(module, loss, inputs, targets, size, shares, tolerance).changed
    return ""
