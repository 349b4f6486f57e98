"""Convolutions with delayed weight gradients: in 1 to 3 dimensions, strided, padded, dilated, grouped, transposed."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pipeplan.frontend.split_backward.queue import WeightQueue, add_gradient, autocast_operands

Numbers = int | Sequence[int]
"""One number for all axes, or one per axis."""


class Shape(NamedTuple):
    """Geometry of a convolution: the arguments of ``aten::convolution`` after input, weight and bias."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    queue: WeightQueue,
) -> Tensor:
    """Convolution like `torch.conv2d`, in one to three dimensions.

    ``x`` has shape (samples, channels, …), ``weight`` (out, in / groups, …).
    """
    axes = weight.ndim - 2
    sides = _sides(padding, _each(dilation, axes), weight.shape[2:])
    if sides is None or x.ndim != weight.ndim or not queue.takes(weight, bias):
        return _PLAIN[axes](x, weight, bias, stride, padding, dilation, groups)
    shape = Shape(_each(stride, axes), sides, _each(dilation, axes), False, (0,) * axes, groups)
    return _Convolution.apply(x, weight, bias, shape, queue)


def convolve_transposed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
    *,
    queue: WeightQueue,
) -> Tensor:
    """Transposed convolution like `torch.conv_transpose2d`; ``weight`` has shape (in, out / groups, …)."""
    axes = weight.ndim - 2
    if x.ndim != weight.ndim or not queue.takes(weight, bias):
        return _PLAIN_TRANSPOSED[axes](x, weight, bias, stride, padding, output_padding, groups, dilation)
    steps, sides, apart, more = (_each(value, axes) for value in (stride, padding, dilation, output_padding))
    return _Convolution.apply(x, weight, bias, Shape(steps, sides, apart, True, more, groups), queue)


_PLAIN = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
_PLAIN_TRANSPOSED = {1: torch.conv_transpose1d, 2: torch.conv_transpose2d, 3: torch.conv_transpose3d}


def _each(value: Numbers, axes: int) -> Sequence[int]:
    """Expand to one number per axis."""
    if isinstance(value, int):
        return (value,) * axes
    return value if len(value) == axes else tuple(value) * axes


def _sides(padding: Numbers | str, dilation: Sequence[int], kernel: Sequence[int]) -> Sequence[int] | None:
    """Padding on either side of each axis; None if the two sides differ."""
    if padding == "valid":
        return (0,) * len(kernel)
    if not isinstance(padding, str):
        return _each(padding, len(kernel))
    both = [each * (size - 1) for each, size in zip(dilation, kernel, strict=True)]
    return None if any(each % 2 for each in both) else [each // 2 for each in both]


class _Convolution(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape, queue: WeightQueue) -> Tensor:
        low, low_weight, low_bias = autocast_operands(x, weight, bias)
        ctx.save_for_backward(low, weight)
        ctx.kind, ctx.shape, ctx.queue, ctx.owners = x.dtype, shape, queue, (weight, bias)
        return torch.convolution(low, low_weight, low_bias, *shape)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_weight, of_bias = ctx.owners
        ctx.queue.put(partial(_add_gradients, of_weight, of_bias, x.detach(), gradient, ctx.shape))
        if not ctx.needs_input_grad[0]:
            return (None,) * 5
        back, _, _ = _gradients(gradient, x, weight, ctx.shape, (True, False, False))
        return back.to(ctx.kind), None, None, None, None


def _add_gradients(weight: nn.Parameter, bias: nn.Parameter | None, x: Tensor, gradient: Tensor, shape: Shape) -> None:
    _, of_weight, of_bias = _gradients(gradient, x, weight, shape, (False, True, bias is not None))
    add_gradient(weight, of_weight)
    if bias is not None:
        add_gradient(bias, of_bias)


def _gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, shape: Shape, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input, weight and bias, as far as ``wanted``."""
    channels = [gradient.shape[1]]
    return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
        gradient, x, weight.to(gradient.dtype), channels, *shape, wanted
    )
