"""Captured layers under autocast, compared with the module under autocast."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers.captured_models import tiny_gnmt, tiny_llama, tiny_unet
from pipeplan.frontend.batch import call, tensors
from pipeplan.frontend.capture import capture_layers
from pipeplan.frontend.workload import Workload


def _runs_lstm_in_bfloat16() -> bool:
    """Processors without 512-bit vector instructions have no bfloat16 LSTM in oneDNN, captured or not."""
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.nn.LSTM(2, 2)(torch.zeros(1, 1, 2))
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("build", [tiny_gnmt, tiny_unet, tiny_llama])
def test_layers_under_autocast(build: Callable[[], Workload]) -> None:
    """In bfloat16, loss and gradients are the module's to the last bit: the same operations in the same precisions."""
    if build is tiny_llama:
        pytest.importorskip("transformers")
    if build is tiny_gnmt and not _runs_lstm_in_bfloat16():
        pytest.skip("this processor runs no LSTM in bfloat16")
    torch.manual_seed(0)
    workload = build()
    module = workload.module
    inputs, targets = workload.draw(2, torch.Generator().manual_seed(0))
    sequence = capture_layers(module, inputs, front_end="graph", both_modes=False)

    def through() -> Tensor:
        values = tensors(inputs)
        for layer in sequence.layers:
            made = layer(*values)
            values = made if isinstance(made, tuple) else (made,)
        return workload.loss(sequence.restore(values), targets)

    found = []
    for way in (through, lambda: workload.loss(call(module, inputs), targets)):
        module.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = way()
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
        found.append({"loss": loss.detach(), **gradients})
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    with torch.no_grad():
        assert float(workload.loss(call(module.float(), inputs), targets)) != float(found[0]["loss"])
