"""Torch's layers with delayed weight gradients, which wait in the layer's queue.

A layer becomes one of these by a change of its class, so that its parameters, their names, its hooks and its copies
stay unchanged.
"""

from functools import cache

from torch import Tensor, nn
from torch.nn import functional

from pipeplan.frontend.split_backward.convolutions import convolve, convolve_transposed
from pipeplan.frontend.split_backward.products import embedding, linear
from pipeplan.frontend.split_backward.queue import WeightQueue


class Linear(nn.Linear):  # type: ignore[misc]
    """Linear map ``y = x · Wᵀ + b``."""

    weight_queue: WeightQueue

    def forward(self, input: Tensor) -> Tensor:
        """Forward of `torch.nn.Linear`."""
        return linear(input, self.weight, self.bias, queue=self.weight_queue)


class Embedding(nn.Embedding):  # type: ignore[misc]
    """Look-up of rows of a table."""

    weight_queue: WeightQueue

    def forward(self, input: Tensor) -> Tensor:
        """Forward of `torch.nn.Embedding`."""
        if self.max_norm is not None:  # the look-up then writes into the table
            return super().forward(input)
        padding = -1 if self.padding_idx is None else self.padding_idx
        return embedding(self.weight, input, padding, self.scale_grad_by_freq, self.sparse, queue=self.weight_queue)


class _Convolving:
    weight_queue: WeightQueue

    def _conv_forward(self: nn.Conv2d, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = functional.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return convolve(input, weight, bias, self.stride, padding, self.dilation, self.groups, queue=self.weight_queue)


class Conv1d(_Convolving, nn.Conv1d):  # type: ignore[misc]
    """Convolution along one axis."""


class Conv2d(_Convolving, nn.Conv2d):  # type: ignore[misc]
    """Convolution along two axes."""


class Conv3d(_Convolving, nn.Conv3d):  # type: ignore[misc]
    """Convolution along three axes."""


class _Transposed:
    weight_queue: WeightQueue

    def forward(self: nn.ConvTranspose2d, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Forward of `torch.nn.ConvTranspose2d` and its variants."""
        more = self.output_padding
        if output_size is not None:
            axes = len(self.kernel_size)
            more = self._output_padding(
                input, output_size, self.stride, self.padding, self.kernel_size, axes, self.dilation
            )
        return convolve_transposed(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            more,
            self.groups,
            self.dilation,
            queue=self.weight_queue,
        )


class ConvTranspose1d(_Transposed, nn.ConvTranspose1d):  # type: ignore[misc]
    """Transposed convolution along one axis."""


class ConvTranspose2d(_Transposed, nn.ConvTranspose2d):  # type: ignore[misc]
    """Transposed convolution along two axes."""


class ConvTranspose3d(_Transposed, nn.ConvTranspose3d):  # type: ignore[misc]
    """Transposed convolution along three axes."""


_LAYERS: tuple[type[nn.Module], ...] = (
    Linear,
    Embedding,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)


@cache
def delayed_class(kind: type[nn.Module]) -> type[nn.Module] | None:
    """Variant of a layer class with delayed weight gradients; None if there is none.

    ::

        class LinearReLU(nn.Linear)        WaitingLinearReLU ─▶ LinearReLU ─▶ Linear, here ─▶ nn.Linear

    A user's class keeps its own methods; if these call methods of torch's layer, they reach the ones of this module.
    Any other use of the weights in these methods stays as it is.
    """
    for ours in _LAYERS:
        theirs = ours.__name__
        if issubclass(kind, getattr(nn, theirs)):
            return ours if kind is getattr(nn, theirs) else type(f"Waiting{kind.__name__}", (kind, ours), {})
    return None
