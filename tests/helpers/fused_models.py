"""Models with several projections in one matrix, as people write them, and how Megatron would split them."""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeplan.core.grouped_axis import GroupedAxis
from pipeplan.frontend.workload import Workload

WIDTH, HEADS, LENGTH = 16, 4, 6


class Grouped(nn.Module):
    """Queries before fewer keys and values, by slices; gate before up, by `chunk`, as in Phi-3.

    ``nested``: queries apart from keys and values by `split`, then these two from each other.
    """

    def __init__(self, *, nested: bool = False) -> None:
        super().__init__()
        self.nested = nested
        self.fused, self.out = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.gate_up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same shape."""
        y = self.fused(x)
        if self.nested:
            query, both = y.split([WIDTH, WIDTH], -1)
            key, value = both.chunk(2, -1)
        else:
            query, key, value = y[..., :WIDTH], y[..., WIDTH : 3 * WIDTH // 2], y[..., 3 * WIDTH // 2 :]
        mixed = functional.scaled_dot_product_attention(
            _heads(query, HEADS), *(_heads(each, HEADS // 2).repeat_interleave(2, 1) for each in (key, value))
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(x).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


def _heads(x: Tensor, count: int) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


class Unbound(nn.Module):
    """Queries, keys and values as indices of an axis, as in vision transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.fused, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same shape."""
        batch, length, width = x.shape
        query, key, value = self.fused(x).reshape(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Selected(nn.TransformerEncoderLayer):
    """Torch's own encoder layer, whose attention selects queries, keys and values from an axis."""

    def __init__(self, *, batch_first: bool = True) -> None:
        super().__init__(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=batch_first)


THIRDS, HALVES = (1, 1, 1), (1, 1)
SHARDS = {
    "sliced.fused.*": GroupedAxis(0, (2, 1, 1)),
    "nested.fused.*": GroupedAxis(0, (2, 1, 1)),
    "*.gate_up.*": GroupedAxis(0, HALVES),
    "unbound.fused.*": GroupedAxis(0, THIRDS),
    "selected.self_attn.in_proj_*": GroupedAxis(0, THIRDS),
    "*.linear1.*": 0,
} | dict.fromkeys(("*.out.weight", "*.down.weight", "*.out_proj.weight", "*.linear2.weight"), 1)
"""Megatron's: heads, and hidden neurons."""


def tiny_fused() -> Workload:
    """A block of each kind."""
    layers = OrderedDict[str, nn.Module](
        embedding=nn.Embedding(30, WIDTH),
        sliced=Grouped(),
        unbound=Unbound(),
        selected=Selected(),
        nested=Grouped(nested=True),
        head=nn.Linear(WIDTH, 30),
    )

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        text = torch.randint(30, (samples, LENGTH), generator=generator)
        return text, text.roll(1, 1)

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return Workload(nn.Sequential(layers), draw, loss, shards=SHARDS)
