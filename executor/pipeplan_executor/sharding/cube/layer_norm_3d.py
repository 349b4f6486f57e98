"""`layer_norm_3d`: layer norm of tensors whose features are split along an axis of a cube.

Each process knows mean and squared deviations of its features. Those of all features follow from them without a
difference of large numbers (Chan, Golub and LeVeque, 1983)::

    mean = Σ mean_j / o                deviations = Σ deviations_j + n / o Σ (mean_j − mean)²
"""

from typing import Any

import torch
from torch import Tensor

from pipeplan_executor.sharding.cube.axes import Axes, arrived, gathered, summed


def layer_norm_3d(x: Tensor, weight: Tensor, bias: Tensor, axes: Axes, epsilon: float = 1e-5) -> Tensor:
    """Return this process's part of a layer norm over the last dimension.

    Sent are two numbers for each row: gathered along the output axis in the forward, summed along it in the backward.
    The gradients of weight and bias are summed along the other two axes.

    Parameters
    ----------
    x : Tensor, shape (M / (w i), ..., K / o)
        Laid out like the input of `linear_3d`; so is what is returned.
    weight, bias : Tensor, shape (K / o)
        Alike along the weight and the input axis.
    axes : Axes
    epsilon : float
    """
    made: Tensor = _LayerNorm3d.apply(x, weight, bias, axes, epsilon)
    return made


class _LayerNorm3d(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, axes: Axes, epsilon: float) -> Tensor:
        own = x.mean(-1, keepdim=True)
        deviations = (x - own).square().sum(-1, keepdim=True)
        means, squares = arrived(gathered(torch.stack((own, deviations)).unsqueeze(0), axes.output)).unbind(1)
        mean = means.mean(0)
        squares = squares.sum(0) + x.shape[-1] * (means - mean).square().sum(0)
        scale = torch.rsqrt(squares / (x.shape[-1] * axes.output.size()) + epsilon)
        normal = (x - mean) * scale
        ctx.axes = axes
        ctx.save_for_backward(normal, scale, weight)
        return normal * weight + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        axes, (normal, scale, weight) = ctx.axes, ctx.saved_tensors
        inner = gradient * weight
        sums = torch.stack((inner.sum(-1, keepdim=True), (inner * normal).sum(-1, keepdim=True)))
        begun = summed(sums, axes.output)
        flat = gradient.flatten(0, -2)
        affine = torch.stack(((flat * normal.flatten(0, -2)).sum(0), flat.sum(0)))
        for axis in (axes.weight, axes.input):
            affine = arrived(summed(affine, axis))
        mean, slope = (arrived(begun) / (normal.shape[-1] * axes.output.size())).unbind(0)
        return scale * (inner - mean - normal * slope), affine[0], affine[1], None, None
