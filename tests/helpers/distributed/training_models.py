"""Small models for tests of training: with dropout, and with padded sentences."""

from collections import OrderedDict
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeplan.core.grouped_axis import GroupedAxis
from pipeplan.frontend.workload import Workload

PADDING = -100


class Noisy(nn.Module):
    """Residual layer that calls dropout as a function, which is invisible to a search for modules."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return x + functional.dropout(self.linear(x).tanh(), 0.3, self.training)


def dropped() -> Workload:
    """Model of token numbers, attention and perceptrons with dropout, and dropout as a layer of its own."""

    def block() -> nn.Module:
        return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)

    layers = OrderedDict(
        embedding=nn.Embedding(30, 16),
        first=block(),
        noisy=Noisy(),
        drop=nn.Dropout(0.4),
        second=block(),
        head=nn.Linear(16, 30),
    )
    return Workload(nn.Sequential(layers), _text, _loss)


def dropped_apart() -> Workload:
    """The same with shards: of heads, of hidden neurons, and of the tensors that dropout is called on."""
    by_columns = dict.fromkeys(("*.linear1.*", "noisy.linear.*"), 0) | {"*.in_proj_*": GroupedAxis(0, (1, 1, 1))}
    return replace(dropped(), shards={**by_columns, "*.out_proj.weight": 1, "*.linear2.weight": 1})


class Gated(nn.Module):
    """Residual perceptron with a gate and a norm of squares, as in Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(16, eps=1e-6)
        self.gate, self.up = nn.Linear(16, 32, bias=False), nn.Linear(16, 32, bias=False)
        self.down = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        y = self.norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def gated() -> Workload:
    """Three gated perceptrons, of which the first and the last share a norm."""
    layers = OrderedDict[str, nn.Module](embedding=nn.Embedding(30, 16), first=Gated(), second=Gated(), third=Gated())
    layers["third"].norm = layers["first"].norm
    layers["head"] = nn.Linear(16, 30)
    shards = {"*.gate.*": 0, "*.up.*": 0, "*.down.weight": 1}
    return Workload(nn.Sequential(layers), _text, _loss, shards=shards)


class Skipping(nn.Module):
    """Model with a skip around dropout, which is not a chain, so that it is captured as a graph."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.words = nn.Embedding(30, 16)
        self.first, self.second, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 30)

    def forward(self, words: Tensor) -> Tensor:
        """Compute logits for each word."""
        x = functional.dropout(self.words(words), self.dropout, self.training)
        y = functional.dropout(self.first(x).tanh(), self.dropout, self.training)
        return self.head(x + self.second(y).tanh())


class Idling(nn.Module):
    """Layer with a parameter that it never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return x + self.used(x).tanh()


def idling() -> Workload:
    """Layers of which one has a parameter without a gradient."""
    layers = OrderedDict(embedding=nn.Embedding(30, 16), idling=Idling(), linear=nn.Linear(16, 16))
    return Workload(nn.Sequential(layers | {"head": nn.Linear(16, 30)}), _text, _loss)


class Scaled(nn.Module):
    """Layer with one row of factors, which returns a view."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.empty(1, 16))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the factors."""
        nn.init.normal_(self.factors)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return (x * self.factors).unsqueeze(1).squeeze(1)


class Adding(nn.Module):
    """Layer that writes into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        x += self.linear(x.clone())
        return x


def uneven() -> Workload:
    """Sizes that replicas do not divide, a frozen layer, views, and layers that write into them."""
    layers = [nn.Linear(7, 16), Scaled(), Adding(), nn.Linear(16, 16), Scaled(), nn.ReLU(inplace=True)]
    for parameter in layers[3].parameters():
        parameter.requires_grad_(False)

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, 7, generator=generator), torch.randn(samples, 2, generator=generator)

    return Workload(nn.Sequential(*layers, nn.Linear(16, 2)), draw, functional.mse_loss)


def skipping() -> Workload:
    """Dropout in a model with a skip connection."""
    return Workload(Skipping(0.3), _text, _loss)


def forking() -> Workload:
    """Model of `skipping` without dropout."""
    return Workload(Skipping(0.0), _text, _loss)


def padded() -> Workload:
    """Sentences of different lengths: the loss is the mean over words, and micro-batches are weighted by words."""
    layers = OrderedDict(
        embedding=nn.Embedding(30, 16), widen=nn.Linear(16, 24), tanh=nn.Tanh(), narrow=nn.Linear(24, 16)
    )
    layers["head"] = nn.Linear(16, 30)
    return Workload(nn.Sequential(layers), _sentences, _loss, weight=lambda words: float((words != PADDING).sum()))


def steep() -> Workload:
    """Model with a loss so steep that fp16 gradients overflow until the loss scale has fallen a few times."""
    layers = OrderedDict(first=nn.Linear(16, 16), gelu=nn.GELU(), second=nn.Linear(16, 16), last=nn.Linear(16, 4))

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, 16, generator=generator), torch.randn(samples, 4, generator=generator)

    return Workload(nn.Sequential(layers), draw, lambda outputs, targets: 10 * functional.mse_loss(outputs, targets))


def steep_apart() -> Workload:
    """The same with shards."""
    return replace(steep(), shards={"first.*": 0, "second.weight": 1})


def _text(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    text = torch.randint(30, (samples, 7), generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def _sentences(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    words, targets = _text(samples, generator)
    lengths = torch.randint(0, 6, (samples, 1), generator=generator)
    lengths[0] = 3
    lengths[-2:] = 0  # a whole micro-batch of padding
    return words, targets.masked_fill(torch.arange(6) > lengths - 1, PADDING)


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PADDING)
