"""Formats of tensors under autocast, found without values."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipeplan.errors import InputError
from pipeplan_executor.precision import FORMATS, autocast, pretended

CPU = torch.device("cpu")
CALLS = {
    "product": lambda x: x @ x.mT,
    "norm": lambda x: functional.layer_norm(x @ x.mT, (4,)),
    "residual": lambda x: x + x @ x,
    "convolution": lambda x: functional.conv1d(x[None], x[:, :, None]),
    "attention": lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    "loss": lambda x: functional.mse_loss(x @ x, x),
    "numbers": lambda x: x.argmax(),
}


@pytest.mark.parametrize("precision", [None, *FORMATS])
@pytest.mark.parametrize("call", CALLS)
def test_pretended_tensors_have_the_formats_of_real_ones(precision: str | None, call: str) -> None:
    """Without computing anything, every operation gives the format that it gives under autocast on the device."""
    with autocast(precision, CPU):
        real = CALLS[call](torch.ones(4, 4))
    with pretended(precision, CPU) as where:
        found = CALLS[call](torch.empty(4, 4, device=where))
        assert (found.dtype, found.shape) == (real.dtype, real.shape)
        assert nn.Parameter(found.float()).requires_grad


def test_other_precisions_are_refused() -> None:
    """A name that is not known is answered with those that are."""
    with pytest.raises(InputError, match="bf16, fp16"):
        autocast("int8", CPU)
