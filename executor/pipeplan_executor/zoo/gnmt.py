"""GNMT (Wu et al., 2016): an LSTM encoder and an LSTM decoder that attends to the encoder's top layer.

::

    source ─▶ embedding ─▶ both ways ─▶ layer1 … layer(n−1) ─────────────╮ memory
    target ─▶ embedding ─▶ first ─▶ attention ─┬─▶ layer1 … layer(n−1) ─▶ head ─▶ logits
                                       context ╰── read by every layer of the decoder

As published, layers from the second on of the encoder's one-way part, and of the decoder, have residuals, and the
decoder's lowest layer alone queries the attention. The attention is additive (Bahdanau et al., 2015). The decoder reads
the true target (teacher forcing), so the whole sentence goes through a layer at once.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeplan.frontend.workload import Workload


class Encoder(nn.Module):
    """Source words to one vector per word; its lowest layer is bidirectional."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.both_ways = nn.LSTM(width, width // 2, bidirectional=True, batch_first=True)
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers - 1))

    def forward(self, source: Tensor) -> Tensor:
        """(batch, length) integers to (batch, length, width)."""
        x, _ = self.both_ways(self.embedding(source))
        for number, layer in enumerate(self.layers):
            y, _ = layer(x)
            x = x + y if number else y
        return x


class Attention(nn.Module):
    """Additive attention: the score of a pair is a learnt vector times tanh of the sum of both projections."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, asking: Tensor, memory: Tensor) -> Tensor:
        """(batch, target, width) and (batch, source, width) to (batch, target, width)."""
        pairs = torch.tanh(self.query(asking).unsqueeze(2) + self.key(memory).unsqueeze(1))
        return torch.softmax(self.score(pairs).squeeze(-1), dim=-1) @ memory


class GNMT(nn.Module):
    """Encoder, decoder and a head over the target's words."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.encoder = Encoder(vocabulary, width, layers)
        self.embedding = nn.Embedding(vocabulary, width)
        self.first = nn.LSTM(width, width, batch_first=True)
        self.attention = Attention(width)
        self.layers = nn.ModuleList(nn.LSTM(2 * width, width, batch_first=True) for _ in range(layers - 1))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Source words and the target's words so far to logits of each next word of the target."""
        memory = self.encoder(source)
        x, _ = self.first(self.embedding(target))
        context = self.attention(x, memory)
        for number, layer in enumerate(self.layers):
            y, _ = layer(torch.cat([x, context], -1))
            x = x + y if number else y
        return self.head(x)


def gnmt(layers: int = 8, width: int = 256, vocabulary: int = 8192, source: int = 24, target: int = 20) -> Workload:
    """Translation of random sentences of ``source`` words into ones of ``target`` words.

    GNMT itself is 1024 wide with 32 000 words and 8 layers a side; the default is a quarter of that.
    """

    def draw(samples: int, generator: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
        words = torch.randint(vocabulary, (samples, source), generator=generator)
        text = torch.randint(vocabulary, (samples, target + 1), generator=generator)
        return {"source": words, "target": text[:, :-1].contiguous()}, text[:, 1:].contiguous()

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return Workload(GNMT(vocabulary, width, layers), draw, loss)
