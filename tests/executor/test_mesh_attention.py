"""Attention whose tokens axes of a mesh split, beside masks that differ from head to head and from token to token."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from helpers.mesh_threads import Place, Threads
from pipeplan.core.operators import TOKEN
from pipeplan.core.strategies import BY_HEADS, BY_KEYS, BY_RING, AxisStrategy
from pipeplan_executor.sharding.blocks import ROWS
from pipeplan_executor.sharding.kernels import Options
from pipeplan_executor.sharding.mesh.attention import _Attention, _Method

SIZES = (2, 3)


def rows(tensor: Tensor, place: Place, axes: Sequence[int]) -> Tensor:
    """The rows that a process has of those that some axes split."""
    for axis in axes:
        tensor = tensor.chunk(SIZES[axis], ROWS)[place[axis]]
    return tensor


@pytest.mark.parametrize("heads", [1, 6])
@pytest.mark.parametrize(
    "ways", [(BY_HEADS, BY_HEADS), (BY_RING, BY_HEADS), (BY_KEYS, BY_HEADS), (BY_RING, BY_KEYS), (BY_KEYS, BY_KEYS)]
)
def test_masks_are_cut_as_heads_and_tokens_are(ways: tuple[str, ...], heads: int) -> None:
    """However keys reach queries, each query of each head sees them through the row of the mask that is its own."""
    operands = [torch.randn(1, 6, 12, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mask, gradient = torch.randn(1, heads, 12, 12).double(), torch.randn(1, 6, 12, 4).double()
    whole = functional.scaled_dot_product_attention(*operands, mask)
    wanted = (whole, *torch.autograd.grad(whole, operands, gradient))
    strategy = tuple(AxisStrategy(TOKEN, by=way) for way in ways)
    of_rows = [axis for axis, way in enumerate(ways) if way != BY_HEADS]
    threads = Threads(SIZES)

    def run(place: Place) -> tuple[Tensor, ...]:
        own = [rows(each.detach(), place, (0, 1)).contiguous().requires_grad_() for each in operands]
        method = _Method(threads.axes[place], strategy, Options(False, None, None))
        made = _Attention.apply(*own, rows(mask, place, of_rows), method)
        return (made, *torch.autograd.grad(made, own, rows(gradient, place, (0, 1)).contiguous()))

    for place, found in threads.run(run).items():
        for one, other in zip(found, wanted, strict=True):
            assert torch.allclose(one, rows(other, place, (0, 1)), atol=1e-12), place
