"""Floating-point operations of each layer, so that a measured model can also be estimated on devices not at hand."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from pipeplan.model import Work
from pipeplan.profile.measure import Segment
from pipeplan.profile.passes import run_layer


def work_of(segment: Segment, size: int) -> list[Work]:
    """Per sample, counted by torch at ``size`` samples: matrix products and convolutions, a multiply-add as two.

    The weight gradient is what a whole backward pass does beyond the input gradient. ``saved`` is left 0: the measured
    bytes say it better.
    """
    feed = segment.feeds[size]
    value = feed.leaf()
    result = []
    for layer in segment.layers:
        with _counter() as forward:
            output = run_layer(layer, value)
        inputs = [value] if value.requires_grad else []
        weights = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        to_inputs = _gradient_flops(output, inputs)
        result.append(
            Work(
                forward_flops=_per_sample(forward.get_total_flops(), size),
                input_gradient_flops=_per_sample(to_inputs, size),
                weight_gradient_flops=_per_sample(_gradient_flops(output, [*inputs, *weights]) - to_inputs, size),
                output=_per_sample(output.numel() * output.element_size(), size),
                saved=0,
            )
        )
        value = output.detach()
        if value.is_floating_point():
            value.requires_grad_()
    return result


def _gradient_flops(output: torch.Tensor, wanted: Sequence[torch.Tensor]) -> int:
    if not wanted or not output.requires_grad:
        return 0
    with _counter() as counter:
        torch.autograd.grad(output, wanted, torch.ones_like(output), retain_graph=True, allow_unused=True)
    return int(counter.get_total_flops())


def _counter() -> Any:
    """Torch's counter, taught the attention that runs on a CPU."""
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

    def forward_count(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        return sdpa_flop_count(query, key, value)

    def backward_count(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        return sdpa_backward_flop_count(gradient, query, key, value)

    return FlopCounterMode(display=False, custom_mapping={attention: forward_count, backward: backward_count})


def _per_sample(total: int, size: int) -> int:
    return -(-total // size)
