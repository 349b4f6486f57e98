"""Embeddings whose weight gradients wait.

Autograd makes a table of zeros for every micro-batch, adds the rows that were looked up, and adds the table to the
gradient. Here the rows go at once where they belong.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pipeplan.frontend.split_backward.queue import WeightQueue


def embedding(
    weight: Tensor,
    numbers: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    queue: WeightQueue,
) -> Tensor:
    """``aten::embedding``: rows of the weight, by number; row ``padding_idx`` gets no gradient."""
    if not (scale_grad_by_freq or sparse) and queue.waits_for(weight):
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
    if rows.itemsize < 4:  # a row that is used often would be rounded at each use, and soon grow no more
        places, order = torch.unique(places, return_inverse=True)
        sums = torch.zeros(len(places), rows.shape[1], device=rows.device)
        rows = sums.index_add_(0, order, rows.float()).to(rows.dtype)
    weight.grad.index_add_(0, places, rows)
