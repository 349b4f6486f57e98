"""Floating-point operations of each layer, so that a measured model can also be estimated on devices not at hand."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pipeplan.model import Work
from pipeplan.profile.measure import Segment
from pipeplan.profile.passes import run_layer


def work_of(segment: Segment, size: int) -> list[Work]:
    """Per sample, counted by torch at ``size`` samples: matrix products and convolutions, a multiply-add as two.

    ``saved`` is left 0: the measured bytes say it better.
    """
    feed = segment.feeds[size]
    value = feed.leaf()
    result = []
    for layer in segment.layers:
        with FlopCounterMode(display=False) as forward:
            output = run_layer(layer, value)
        parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        result.append(
            Work(
                forward_flops=_per_sample(forward.get_total_flops(), size),
                input_gradient_flops=_per_sample(_gradient_flops(output, [value] * value.requires_grad), size),
                weight_gradient_flops=_per_sample(_gradient_flops(output, parameters), size),
                output=_per_sample(output.numel() * output.element_size(), size),
                saved=0,
            )
        )
        value = output.detach()
        if value.is_floating_point():
            value.requires_grad_()
    return result


def _gradient_flops(output: torch.Tensor, wanted: list[torch.Tensor] | list[nn.Parameter]) -> int:
    if not wanted or not output.requires_grad:
        return 0
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(output, wanted, torch.ones_like(output), retain_graph=True, allow_unused=True)
    return int(counter.get_total_flops())


def _per_sample(total: int, size: int) -> int:
    return -(-total // size)
