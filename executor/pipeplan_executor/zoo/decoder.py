"""A decoder-only transformer with a head over a large vocabulary, untied or tied: the head outweighs any block.

::

    embedding ─▶ block0 ─▶ … ─▶ block7 ─▶ norm ─▶ head
    tokens         pre-norm, causal                logits over the vocabulary
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeplan.frontend.workload import Workload


class Embedding(nn.Module):
    """Token embedding plus a learnt position embedding: (batch, length) integers to (batch, length, width)."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Add both embeddings."""
        return self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]


class Block(nn.Module):
    """Pre-norm causal self-attention and a GELU perceptron, each with a residual."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.perceptron_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, hidden)
        self.narrow = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same shape."""
        batch, length, width = x.shape
        split = self.query_key_value(self.attention_norm(x)).view(batch, length, self.heads, 3, width // self.heads)
        query, key, value = split.permute(3, 0, 2, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.widen(self.perceptron_norm(x))))


def decoder(
    blocks: int = 8,
    width: int = 256,
    heads: int = 4,
    vocabulary: int = 16384,
    length: int = 64,
    hidden: int = 1024,
    tied: bool = False,
) -> Workload:
    """Next-token training; the default has 15 million parameters, more than half of them in embedding and head.

    ``tied``: embedding and head share their matrix, as in GPT-2 (Press and Wolf, 2017).
    """
    embedding = Embedding(vocabulary, length, width)
    layers: OrderedDict[str, nn.Module] = OrderedDict(embedding=embedding)
    layers |= {f"block{i}": Block(width, heads, hidden) for i in range(blocks)}
    head = nn.Linear(width, vocabulary, bias=False)
    if tied:
        head.weight = embedding.tokens.weight
    layers |= {"norm": nn.LayerNorm(width), "head": head}

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        text = torch.randint(vocabulary, (samples, length + 1), generator=generator)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return Workload(nn.Sequential(layers), draw, loss, shards=SHARDS)


SHARDS = {
    "*.query_key_value.*": 0,
    "*.attention_out.weight": 1,
    "*.widen.*": 0,
    "*.narrow.weight": 1,
}
"""By columns, then by rows: a tensor-parallel rank has some heads and hidden neurons (Shoeybi et al., 2019)."""


def tied_decoder() -> Workload:
    """The decoder with embedding and head tied."""
    return decoder(tied=True)
