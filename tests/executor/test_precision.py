"""Formats of tensors under autocast, found without values."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeplan.core.errors import InputError
from pipeplan.frontend.capture.front_ends import capture_layers
from pipeplan.frontend.capture.private import on_meta
from pipeplan.frontend.profile.passes import FORMATS, autocast
from pipeplan_executor.stages.precision import formats, sharing_casts

CPU = torch.device("cpu")


class Called(nn.Module):
    """A layer that calls a function of its input and a weight."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Call the function."""
        return self.function(x, self.weight)


CALLS = {
    "product": lambda x, w: x @ w,
    "norm": lambda x, w: functional.layer_norm(x @ w, (4,)),
    "residual": lambda x, w: x + x @ w,
    "sum": lambda x, w: (x @ w).sum(-1),
    "convolution": lambda x, w: functional.conv1d(x[None], w[:, :, None])[0],
    "attention": lambda x, w: functional.scaled_dot_product_attention(*[(x @ w)[None]] * 3),
    "loss": lambda x, w: functional.mse_loss(x @ w, x),
    "numbers": lambda x, w: (x @ w).argmax(-1),
}


@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("call", CALLS)
def test_formats_are_those_of_a_real_run(precision: str, call: str) -> None:
    """Without computing anything, every layer's output has the format and the need for a gradient of a real one."""
    stack = nn.Sequential(nn.Linear(4, 4), Called(CALLS[call]))
    inputs = torch.ones(4, 4)
    with autocast(precision, CPU):
        real = [inputs, stack[0](inputs), stack(inputs)]
    found = formats(capture_layers(on_meta(stack), inputs), inputs, precision, CPU)
    expected = [(tensor.dtype, tensor.shape, tensor.requires_grad) for tensor in real]
    assert [(tensor.dtype, tensor.shape, tensor.requires_grad) for (tensor,) in found] == expected
    assert all(tensor.is_meta for row in found for tensor in row)


def test_a_step_converts_each_weight_once() -> None:
    """All micro-batches of a step save one copy of a weight in 16 bits, and their gradients add up as always."""
    layer = nn.Linear(8, 8, bias=False)
    inputs = [torch.randn(4, 8) for _ in range(3)]
    gradients, places = [], []

    def note(tensor: Tensor) -> Tensor:
        if tensor.shape == (8, 8):
            places[-1].append(tensor.untyped_storage().data_ptr())
        return tensor

    for around in (sharing_casts("bf16", CPU), nullcontext()):
        places.append([])
        layer.zero_grad()
        with around, torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            outputs = []
            for part in inputs:
                with autocast("bf16", CPU):
                    outputs.append(layer(part.requires_grad_()))
            for output in outputs:
                output.float().square().sum().backward()
        gradients.append(layer.weight.grad.clone())
    assert [len(set(each)) for each in places] == [1, 3]
    assert torch.equal(*gradients)


def test_other_precisions_are_refused() -> None:
    """A name that is not known is answered with those that are."""
    with pytest.raises(InputError, match="bf16, fp16"):
        autocast("int8", CPU)
