"""Linear maps whose weight gradients wait.

The functions have the arguments of the operations of torch that they stand for, and the queue behind these.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pipeplan.frontend.split_backward.queue import WeightQueue, add_gradient, lowered


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, queue: WeightQueue) -> Tensor:
    """``x · weightᵀ + bias``: weight of shape (out, in), x of shape (…, in)."""
    if queue.waits_for(weight, bias, stand_ins=True):
        return _Product.apply(x, weight, bias, True, queue)
    return torch.nn.functional.linear(x, weight, bias)


def matmul(x: Tensor, weight: Tensor, *, queue: WeightQueue) -> Tensor:
    """``x · weight``: weight of shape (in, out), x of shape (…, in)."""
    if weight.ndim == 2 and queue.waits_for(weight, stand_ins=True):
        return _Product.apply(x, weight, None, False, queue)
    return torch.matmul(x, weight)


def addmm(bias: Tensor, x: Tensor, weight: Tensor, *, queue: WeightQueue) -> Tensor:
    """``x · weight + bias``: weight of shape (in, out), x of shape (rows, in)."""
    if bias.ndim == 1 and len(bias) == weight.shape[1] and queue.waits_for(weight, bias, stand_ins=True):
        return _Product.apply(x, weight, bias, False, queue)
    return torch.addmm(bias, x, weight)


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """``flipped``: the weight is (out, in), as in a linear layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, flipped: bool, queue: WeightQueue) -> Tensor:
        low, low_weight, low_bias = lowered(x, weight, bias)
        ctx.save_for_backward(low, weight)
        ctx.shape, ctx.kind, ctx.flipped, ctx.queue = x.shape, x.dtype, flipped, queue
        ctx.owners = weight, bias
        if flipped:
            made = torch.nn.functional.linear(low, low_weight, low_bias)
        else:
            made = torch.matmul(low, low_weight) if low_bias is None else torch.addmm(low_bias, low, low_weight)
        # rows put together again are a view, which autograd lets nobody write into behind a function of ours
        return torch.ops.aten._unsafe_view(made, made.shape) if made._is_view() else made

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        of_weight, of_bias = ctx.owners
        ctx.queue.put(partial(_add_product, of_weight, of_bias, x.detach(), rows, ctx.flipped))
        if not ctx.needs_input_grad[0]:
            return (None,) * 5
        weight = weight.to(rows.dtype)
        back = rows.mm(weight if ctx.flipped else weight.t()).view(ctx.shape)
        return back.to(ctx.kind), None, None, None, None


def _add_product(weight: nn.Parameter, bias: nn.Parameter | None, x: Tensor, gradient: Tensor, flipped: bool) -> None:
    """Where gradients are there already, the product adds to them as it is made: autograd would make it apart first."""
    rows = x.reshape(-1, x.shape[-1])
    left, right = (gradient.t(), rows) if flipped else (rows.t(), gradient)
    if weight.is_leaf and weight.grad is not None and weight.grad.dtype == gradient.dtype:
        weight.grad.addmm_(left, right)
    else:
        add_gradient(weight, left.mm(right))
    if bias is not None:
        add_gradient(bias, gradient.sum(0))
