"""Floating-point operations of each layer, for estimates of a measured model on other kinds of device."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from pipeplan.core.model import Work
from pipeplan.frontend.batch import tensors
from pipeplan.frontend.profile.measure import Segment
from pipeplan.frontend.profile.passes import leaves, run_layer
from pipeplan.frontend.profile.ties import bytes_of


def work_of(segment: Segment, size: int) -> list[tuple[Work, tuple[torch.Tensor, ...]]]:
    """Operations of each layer per sample, and its inputs, without values.

    Operations are matrix products and convolutions, a multiply-add as two.

    Torch counts them at ``size`` samples. The weight gradient is the whole backward pass less the input gradient.
    ``saved`` is left 0, as the measured bytes are more exact.
    """
    feed = segment.feeds[size]
    values = feed.leaves()
    result = []
    for layer in segment.layers[size]:
        with counter() as forward, feed.cast():
            outputs = tensors(run_layer(layer, values))
        inputs = [value for value in values if value.requires_grad]
        weights = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        to_inputs = _gradient_flops(outputs, inputs)
        work = Work(
            forward_flops=_per_sample(forward.get_total_flops(), size),
            input_gradient_flops=_per_sample(to_inputs, size),
            weight_gradient_flops=_per_sample(_gradient_flops(outputs, [*inputs, *weights]) - to_inputs, size),
            output=_per_sample(bytes_of(outputs), size),
            saved=0,
        )
        result.append((work, tuple(map(without_values, values))))
        values = leaves(outputs, [output.requires_grad for output in outputs])
    return result


def without_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape and need of a gradient on the meta device."""
    return tensor.detach().to("meta").requires_grad_(tensor.requires_grad)


def _gradient_flops(outputs: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> int:
    roots = [output for output in outputs if output.requires_grad]
    if not wanted or not roots:
        return 0
    ones = [torch.ones_like(root) for root in roots]
    with counter() as counted:
        torch.autograd.grad(roots, wanted, ones, retain_graph=True, allow_unused=True)
    return int(counted.get_total_flops())


def counter() -> Any:
    """Return torch's counter of operations, extended by attention and recurrent layers on a CPU."""
    aten = torch.ops.aten
    return FlopCounterMode(
        display=False,
        custom_mapping={
            aten._scaled_dot_product_flash_attention_for_cpu: _attention,
            aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
            aten.mkldnn_rnn_layer: _recurrence,
            aten.mkldnn_rnn_layer_backward: _recurrence_backward,
        },
    )


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
    return sdpa_flop_count(query, key, value)


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
    return sdpa_backward_flop_count(gradient, query, key, value)


def _recurrence(inputs: Any, input_weight: Any, state_weight: Any, *_: Any, **__: Any) -> int:
    """Operations of one recurrent layer in one direction.

    Shapes: (length, samples, in), (gates · width, in), (gates · width, width).
    """
    return int(2 * prod(inputs[:2]) * (prod(input_weight) + prod(state_weight)))


def _recurrence_backward(*shapes: Any, **_: Any) -> int:
    """Operations of a recurrent layer's backward, with the gradients of inputs and weights together."""
    return 2 * _recurrence(*shapes)


def _per_sample(total: int, size: int) -> int:
    return -(-total // size)
