"""Workloads whose forwards depend on earlier ones, on random numbers, or on the other samples of a batch."""

import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeplan.frontend.workload import Workload

CLASSES = 5


def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch of eight numbers a sample, and classes."""
    return torch.randn(samples, 8, generator=generator), torch.randint(CLASSES, (samples,), generator=generator)


class Normed(nn.Module):
    """Spectral norm, batch norm, dropout and noise, no chain."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 16))
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout(0.3)
        self.second, self.head = nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(torch.tanh(self.norm(self.first(x))))
        y = y + functional.dropout(self.second(y), 0.2, self.training) + 0.1 * torch.randn_like(y)
        return self.head(y)


class Counts(nn.Module):
    """A layer that opens as it is called, leaves itself out at random and draws noise of three kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.calls = nn.Linear(8, 8), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = torch.tanh(self.mix(x)) * min(1.0, self.calls / 10)
        y = y if random.random() < 0.5 else 2 * y
        return functional.dropout(x + y * (1 + np.random.rand()), 0.1)


class Reversed(torch.autograd.Function):
    """The identity, with the gradient reversed."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return -gradient


class Towers(nn.Module):
    """Two towers with batch norm and dropout, whose outputs a contrastive loss compares."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 6))
        self.right = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 6))
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return functional.normalize(self.left(x)), functional.normalize(self.right(x)), self.scale.exp()


class InBatch(nn.Module):
    """A normalisation over the batch by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.tanh(self.first(x))) + x
        return self.head(y - y.mean(0))


class Adversarial(nn.Module):
    """A head whose gradient is reversed, behind dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 16))
        self.head, self.domain = nn.Linear(16, CLASSES), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body(x)
        return self.head(y), self.domain(Reversed.apply(y))


def normed() -> Workload:
    """A captured graph."""
    return Workload(Normed(), draw, functional.cross_entropy)


def counting() -> Workload:
    """A chain."""
    return Workload(nn.Sequential(Counts(), Counts(), Counts(), nn.Linear(8, CLASSES)), draw, functional.cross_entropy)


def contrastive() -> Workload:
    """A loss that compares the samples of a batch."""

    def loss(outputs: tuple[Tensor, Tensor, Tensor], _: Tensor) -> Tensor:
        left, right, scale = outputs
        return functional.cross_entropy(scale * left @ right.T, torch.arange(len(left)))

    return Workload(Towers(), draw, loss)


def adversarial() -> Workload:
    """A model whose captured graph would lose a gradient."""

    def loss(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs[0], targets) + functional.cross_entropy(outputs[1], targets)

    return Workload(Adversarial(), draw, loss)


def in_batch() -> Workload:
    """A model that compares the samples of a batch, though its loss is a mean."""
    return Workload(InBatch(), draw, functional.cross_entropy)


def masked(weighted: bool = False) -> Workload:
    """A mean over the samples that count, of which micro-batches have unlike numbers."""

    def draw_masked(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs, targets = draw(samples, generator)
        return inputs, torch.where(torch.arange(samples) < 1, -100, targets)

    layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    weight = (lambda targets: float((targets != -100).sum())) if weighted else None
    return Workload(layers, draw_masked, functional.cross_entropy, weight)


def masked_and_weighted() -> Workload:
    """The same, with the numbers of samples that count."""
    return masked(weighted=True)


class Hooked(nn.Module):
    """A layer that needs a graph for its hook, with batch norm as a function, in a list what its calls have drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.numbers, self.seen = nn.Linear(8, 8), random.Random(5), [1.0]

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(self.numbers.random())
        y = self.mix(x)
        y.register_hook(lambda gradient: 0.3 * gradient)
        return functional.batch_norm(y, None, None, training=True) * sum(self.seen)


class Lowered(nn.Module):
    """A layer that computes in 16 bits inside."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.tanh(self.mix(x)).float()


def hooked() -> Workload:
    """A chain."""
    return Workload(nn.Sequential(Hooked(), Hooked(), Hooked(), nn.Linear(8, CLASSES)), draw, functional.cross_entropy)


def lowered() -> Workload:
    """A chain."""
    return Workload(nn.Sequential(Lowered(), Lowered(), nn.Linear(8, CLASSES)), draw, functional.cross_entropy)


def masking() -> Workload:
    """A loss that leaves out logits at random, by torch's and Python's random numbers."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs * (torch.rand_like(outputs) < 0.5) * random.random(), targets)

    layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    return Workload(layers, draw, loss)


RIGHT, CHANGED = (normed, counting, masked_and_weighted, hooked, masking), (contrastive, in_batch, masked)
