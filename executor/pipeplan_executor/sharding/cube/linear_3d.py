"""`linear_3d`: a linear map whose rows, inputs and outputs are split along the three axes of a cube.

::

    forward     x  ──▶ gather along i ──┐
                                        ├─ product ──▶ sum and scatter along o ──▶ y
                w  ──▶ gather along w ──┘
    backward    dy ──▶ gather along o ──┬─ product with w ──▶ sum and scatter along i ──▶ dx
                                        └─ product with x ──▶ sum and scatter along w ──▶ dw

The backward needs the gathered x and w again: they are kept, or gathered anew. Both gathers of a forward are under way
at once, and so are the sum of dx and the product that makes dw.
"""

from typing import Any

import torch
from torch import Tensor

from pipeplan_executor.sharding.cube.axes import Axes, arrived, gathered, scattered


def linear_3d(x: Tensor, weight: Tensor, axes: Axes, keep_gathered: bool = True, bias: Tensor | None = None) -> Tensor:
    """Return this process's part of ``x @ weight.T + bias``.

    Parameters
    ----------
    x : Tensor, shape (M / (w i), ..., K / o)
        Rows over the weight axis, then the input axis.
    weight : Tensor, shape (N / (i w), K / o)
        Outputs over the input axis, then the weight axis; inputs over the output axis.
    axes : Axes
    keep_gathered : bool
        Whether the gathered input and weight are kept for the backward, which then gathers only the output's gradient.
        Otherwise parts are kept, a fraction 1 / i of the input and 1 / w of the weight.
    bias : Tensor, optional, shape (N / (i w))
        As the outputs of the weight, and alike along the output axis; gathered with it.

    Returns
    -------
    Tensor, shape (M / (w o), ..., N / i)
        Rows over the weight axis, then the output axis.

    Raises
    ------
    ValueError
        If shapes do not fit, or the output axis does not divide the rows.
    """
    rows = x.shape[0] * axes.input.size()
    if x.shape[-1] != weight.shape[1] or (bias is not None and bias.shape != weight.shape[:1]):
        given = "" if bias is None else f" and biases of shape {tuple(bias.shape)}"
        raise ValueError(
            f"inputs of {x.shape[-1]} features meet weights of shape {tuple(weight.shape)}{given}; the last dimensions "
            "of input and weight are equal, and so are the first ones of weight and bias"
        )
    if rows % axes.output.size():
        raise ValueError(f"{rows} rows cannot be scattered along an axis of {axes.output.size()} processes")
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    made: Tensor = _Linear3d.apply(x, weight, bias, axes, keep_gathered)
    return made


class _Linear3d(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, axes: Axes, keep_gathered: bool) -> Tensor:
        begun = [gathered(x, axes.input), gathered(weight, axes.weight)]
        biases = None if bias is None else gathered(bias, axes.weight)
        rows, matrix = map(arrived, begun)
        made = arrived(scattered(rows @ matrix.T, axes.output))
        if biases is not None:
            made += arrived(biases)
        ctx.axes, ctx.kept = axes, keep_gathered
        ctx.save_for_backward(*((rows, matrix) if keep_gathered else (x, weight)))
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        axes, (for_input, for_weight, for_bias) = ctx.axes, ctx.needs_input_grad[:3]
        begun = gathered(gradient, axes.output)
        rows, matrix = ctx.saved_tensors
        if not ctx.kept:
            matrix = gathered(matrix, axes.weight) if for_input else matrix
            rows = gathered(rows, axes.input) if for_weight else rows
        gradient = arrived(begun)
        flat = gradient.flatten(0, -2)
        made: list[Tensor | None] = [None, None, None]
        if for_input:
            made[0] = scattered(gradient @ arrived(matrix), axes.input)
        if for_weight:
            made[1] = scattered(flat.T @ arrived(rows).flatten(0, -2), axes.weight)
        if for_bias:
            made[2] = scattered(flat.sum(0), axes.weight)  # alike along the output axis, whose rows are gathered
        return *(None if each is None else arrived(each) for each in made), None, None
