"""Linear maps and embeddings with delayed weight gradients.

The functions take the arguments of the torch operations that they replace, and the queue after these.

For an embedding autograd makes a table of zeros for every micro-batch, adds the rows that were looked up, and adds the
table to the gradient. Here the rows are added to the gradient directly.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pipeplan.frontend.split_backward.queue import WeightQueue, add_gradient, autocast_operands


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, queue: WeightQueue) -> Tensor:
    """Linear map ``x · weightᵀ + bias``: weight of shape (out, in), x of shape (…, in)."""
    if queue.takes(weight, bias):
        return _Product.apply(x, weight, bias, True, queue)
    return torch.nn.functional.linear(x, weight, bias)


def matmul(x: Tensor, weight: Tensor, *, queue: WeightQueue) -> Tensor:
    """Product ``x · weight``: weight of shape (in, out), x of shape (…, in)."""
    if weight.ndim == 2 and queue.takes(weight):
        return _Product.apply(x, weight, None, False, queue)
    return torch.matmul(x, weight)


def addmm(bias: Tensor, x: Tensor, weight: Tensor, *, queue: WeightQueue) -> Tensor:
    """Product with bias ``x · weight + bias``: weight of shape (in, out), x of shape (rows, in)."""
    if bias.ndim == 1 and len(bias) == weight.shape[1] and queue.takes(weight, bias):
        return _Product.apply(x, weight, bias, False, queue)
    return torch.addmm(bias, x, weight)


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """Product with a weight; ``flipped``: the weight is (out, in), as in a linear layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, flipped: bool, queue: WeightQueue) -> Tensor:
        low, low_weight, low_bias = autocast_operands(x, weight, bias)
        ctx.save_for_backward(low, weight)
        ctx.shape, ctx.kind, ctx.flipped, ctx.queue = x.shape, x.dtype, flipped, queue
        ctx.owners = weight, bias
        if flipped:
            made = torch.nn.functional.linear(low, low_weight, low_bias)
        else:
            made = torch.matmul(low, low_weight) if low_bias is None else torch.addmm(low_bias, low, low_weight)
        # rows reshaped back are a view, and autograd forbids writes into views returned by a custom function
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
    """Add the product to existing gradients in one operation; autograd would compute it separately first."""
    rows = x.reshape(-1, x.shape[-1])
    left, right = (gradient.t(), rows) if flipped else (rows.t(), gradient)
    if weight.is_leaf and weight.grad is not None and weight.grad.dtype == gradient.dtype:
        weight.grad.addmm_(left, right)
    else:
        add_gradient(weight, left.mm(right))
    if bias is not None:
        add_gradient(bias, gradient.sum(0))


def embedding(
    weight: Tensor,
    numbers: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    queue: WeightQueue,
) -> Tensor:
    """Look-up of rows of the weight by number (``aten::embedding``); row ``padding_idx`` gets no gradient."""
    if not (scale_grad_by_freq or sparse) and queue.takes(weight):
        return _Lookup.apply(weight, numbers, padding_idx, queue)
    return torch.embedding(weight, numbers, padding_idx, scale_grad_by_freq, sparse)


class _Lookup(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, weight: Tensor, numbers: Tensor, padding_idx: int, queue: WeightQueue) -> Tensor:
        ctx.save_for_backward(numbers)
        ctx.weight, ctx.padding_idx, ctx.queue = weight, padding_idx, queue
        return torch.embedding(weight, numbers, padding_idx)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        (numbers,) = ctx.saved_tensors
        ctx.queue.put(partial(_add_rows, ctx.weight, ctx.padding_idx, numbers, gradient))
        return (None,) * 4


def _add_rows(weight: nn.Parameter, padding_idx: int, numbers: Tensor, gradient: Tensor) -> None:
    places, rows = numbers.reshape(-1), gradient.reshape(-1, gradient.shape[-1])
    if padding_idx >= 0:
        rows = rows.masked_fill((places == padding_idx)[:, None], 0.0)
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    if rows.itemsize < 4:  # the sum of a frequent row would be rounded at each use, and soon stop growing
        places, order = torch.unique(places, return_inverse=True)
        sums = torch.zeros(len(places), rows.shape[1], device=rows.device)
        rows = sums.index_add_(0, order, rows.float()).to(rows.dtype)
    weight.grad.index_add_(0, places, rows)
