"""Floating-point operations of each layer, for estimates of a measured model on other kinds of device."""

from collections.abc import Sequence

import torch

from pipeplan.core.model import Work
from pipeplan.frontend.batch import tensors
from pipeplan.frontend.parameters import bytes_of
from pipeplan.frontend.profile.counting import Counter
from pipeplan.frontend.profile.measure import Segment
from pipeplan.frontend.profile.passes import leaves, run_layer


def work_of(segment: Segment, size: int) -> list[tuple[Work, tuple[torch.Tensor, ...]]]:
    """Operations of each layer per sample, and its inputs, without values.

    Operations are matrix products and convolutions, a multiply-add as two.

    Torch counts them at ``size`` samples. The weight gradient is the whole backward pass less the input gradient.
    ``saved`` is left 0, as the measured bytes are more exact. Operations of unknown cost are named (see `counting`).
    """
    feed = segment.feeds[size]
    values = feed.leaves()
    result = []
    for layer in segment.layers[size]:
        with Counter() as forward, feed.cast():
            outputs = tensors(run_layer(layer, values))
        inputs = [value for value in values if value.requires_grad]
        weights = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        to_inputs, to_all = _gradients(outputs, inputs), _gradients(outputs, [*inputs, *weights])
        back = to_inputs.get_total_flops() - to_inputs.of_weights
        work = Work(
            forward_flops=_per_sample(forward.get_total_flops(), size),
            input_gradient_flops=_per_sample(back, size),
            weight_gradient_flops=_per_sample(to_all.get_total_flops() - back, size),
            output=_per_sample(bytes_of(outputs), size),
            saved=0,
            uncounted=tuple(sorted(forward.uncounted | to_all.uncounted)),
        )
        result.append((work, tuple(map(without_values, values))))
        values = leaves(outputs, [output.requires_grad for output in outputs])
    return result


def without_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape and need of a gradient on the meta device."""
    return tensor.detach().to("meta").requires_grad_(tensor.requires_grad)


def _gradients(outputs: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> Counter:
    """Compute the gradients of the wanted tensors; return what was counted."""
    roots, counted = [output for output in outputs if output.requires_grad], Counter()
    if wanted and roots:
        ones = [torch.ones_like(root) for root in roots]
        try:
            with counted:
                torch.autograd.grad(roots, wanted, ones, retain_graph=True, allow_unused=True)
        except RuntimeError:  # a reentrant checkpoint allows all gradients only
            counted = Counter()
            with counted:
                torch.autograd.backward(roots, ones, retain_graph=True)
    return counted


def _per_sample(total: int, size: int) -> int:
    return -(-total // size)
