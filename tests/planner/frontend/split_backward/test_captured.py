"""Whole models, captured as graphs, with delayed weight gradients."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from helpers.captured_models import OURS, TRANSFORMERS
from pipeplan.frontend.batch import call, mapped, tensors
from pipeplan.frontend.capture import capture_layers
from pipeplan.frontend.split_backward.attach import attached
from pipeplan.frontend.split_backward.queue import WeightQueue, run_delayed
from pipeplan.frontend.workload import Workload

PRODUCTS = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.Embedding)
ALWAYS = ("tiny_gnmt", "tiny_unet", "tiny_gpt2")
"""Models of the fast run; the others are in the slow run."""


def case(build: Callable[[], Workload]) -> Any:
    """A model to try."""
    return pytest.param(build, id=build.__name__, marks=() if build.__name__ in ALWAYS else pytest.mark.slow)


@pytest.mark.parametrize("build", [case(build) for build in (*OURS, *TRANSFORMERS)])
def test_every_product_waits_and_is_exact(build: Callable[[], Workload]) -> None:
    """Each call of a linear, convolution or embedding module is delayed once; all gradients are the unsplit model's."""
    if build in TRANSFORMERS:
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    workload = build()
    module = workload.module.double()
    inputs, targets = workload.draw(2, torch.Generator().manual_seed(0))
    inputs = mapped(inputs, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
    whole = copy.deepcopy(module)
    calls: list[nn.Module] = []
    for part in whole.modules():
        if isinstance(part, PRODUCTS) or type(part).__name__ == "Conv1D":
            part.register_forward_hook(lambda part, *_: calls.append(part))
    workload.loss(call(whole, inputs), targets).backward()

    sequence = capture_layers(module, inputs, front_end="graph")
    queue, values = WeightQueue(), tensors(inputs)
    with attached(queue, sequence.layers), queue.opened():
        for layer in sequence.layers:
            returned = layer(*values)
            values = tensors(returned)
        workload.loss(sequence.restore(returned), targets).backward()
    assert len(queue) == len(calls)
    run_delayed(queue.take())
    for (name, found), wanted in zip(module.named_parameters(), whole.parameters(), strict=True):
        assert (found.grad is None) == (wanted.grad is None), name
        if wanted.grad is not None:
            assert torch.allclose(found.grad, wanted.grad, rtol=1e-10, atol=1e-10 * float(wanted.grad.abs().max())), (
                name
            )
