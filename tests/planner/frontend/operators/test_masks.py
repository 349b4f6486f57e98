"""Masks of attention: whether they hide later tokens, by constants alone or with padding."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeplan.frontend.operators.masks import hides_later
from pipeplan.frontend.operators.record import record

TOKENS = 5


class Masked(nn.Module):
    """Attention with a mask of its own and padding; ``ahead``: queries also see so many keys behind their place."""

    def __init__(self, ahead: int, added: bool) -> None:
        super().__init__()
        self.ahead, self.added = ahead, added

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Return attention of all tokens, one head."""
        seen = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril(self.ahead)
        mask = seen & padding[:, None, None, :].bool()
        if self.added:
            mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)


@pytest.mark.parametrize(("ahead", "hides"), [(0, True), (-1, True), (1, False), (TOKENS, False)])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("kind", [torch.int64, torch.bool])
def test_a_mask_with_padding_hides_what_its_constants_hide(
    ahead: int, hides: bool, added: bool, kind: torch.dtype
) -> None:
    """Padding is taken as nothing padded; a mask of other numbers is not known."""
    x = torch.zeros(2, 1, TOKENS, 4, device="meta", requires_grad=True)
    padding = torch.ones(2, TOKENS, dtype=kind, device="meta")
    found = record(Masked(ahead, added), (x, padding), nullcontext, None, None)
    call = next(each for each in found.calls if "attention" in each.name)
    mask = call.given[3]
    assert hides_later(mask, found.calls, found.inputs) == hides
    assert not hides_later(mask, found.calls)
    real = record(Masked(ahead, added), (x, padding.float()), nullcontext, None, None)
    call = next(each for each in real.calls if "attention" in each.name)
    assert not hides_later(call.given[3], real.calls, real.inputs)
