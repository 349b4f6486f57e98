"""Models small enough to run in many cases, by functions that other processes can import."""

import random
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional

from helpers.captured_models import tiny_bert, tiny_gnmt, tiny_gpt2, tiny_llama, tiny_t5, tiny_unet
from pipeplan.core.grouped_axis import GroupedAxis
from pipeplan.frontend.capture import Stages, capture_layers
from pipeplan.frontend.parameters import Held, held_by
from pipeplan.frontend.workload import Workload
from pipeplan_executor.stages import source
from pipeplan_executor.zoo import decoder, mlp, resnet50, vgg16


def tiny_decoder() -> Workload:
    """Decoder of three blocks with a small vocabulary."""
    return decoder(blocks=3, width=16, heads=2, vocabulary=50, length=6, hidden=32)


def wide_decoder() -> Workload:
    """Decoder of a block whose heads and tokens four members can share out."""
    return decoder(blocks=1, width=16, heads=4, vocabulary=50, length=8, hidden=32)


def tiny_tied() -> Workload:
    """Decoder of three blocks with embedding and head tied."""
    return decoder(blocks=3, width=16, heads=2, vocabulary=50, length=6, hidden=32, tied=True)


def tiny_shared() -> Workload:
    """A block between embedding and head that share a matrix, sharded too under tensor parallelism.

    Both halves of its hidden neurons are split, as those of a gate and what it multiplies would be.
    """
    workload = decoder(blocks=1, width=16, heads=2, vocabulary=50, length=6, hidden=32, tied=True)
    halves = {"*.widen.*": GroupedAxis(0, (1, 1)), "*.narrow.weight": GroupedAxis(1, (1, 1))}
    return replace(workload, shards={**(workload.shards or {}), **halves, "head.weight": 1})


def tiny_dropping() -> Workload:
    """A perceptron with dropout and batch norm."""
    layers = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(16, 5)]

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, 8, generator=generator), torch.randint(5, (samples,), generator=generator)

    return Workload(nn.Sequential(*layers), draw, nn.functional.cross_entropy)


def tiny_thrice() -> Workload:
    """Three linear layers that share one matrix, two of which share a bias too: overlapping ties."""
    layers = [nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 5)]
    first, second, third = (layers[i] for i in (0, 2, 3))
    second.weight = third.weight = first.weight
    third.bias = second.bias

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, 16, generator=generator), torch.randint(5, (samples,), generator=generator)

    return Workload(nn.Sequential(*layers), draw, nn.functional.cross_entropy)


def tiny_vgg() -> Workload:
    """VGG-16 with all 22 layers and few channels."""
    return vgg16(image=32, classes=7, classifier=12, channels=((4, 4), (4, 4), (6, 6, 6), (6, 6, 6), (8, 8, 8)))


def tiny_mlp() -> Workload:
    """The perceptron of the zoo, narrower."""
    return mlp(widths=(24, 40, 16, 32, 24))


def tiny_resnet() -> Workload:
    """Bottlenecks with and without a projection, with batch norm."""
    return resnet50(image=64, classes=5, width=4, blocks=(1, 2, 1, 1))


class _Convolutions(nn.Module):
    """Convolutions over all channels, over each, transposed and in groups, with padding and pooling between them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 2 * channels, 3, bias=False)
        self.each = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1, groups=2 * channels)
        self.point = nn.Conv2d(2 * channels, channels, 1)
        self.grouped = nn.Conv2d(channels, channels, 3, padding=1, groups=2)
        self.wider = nn.ConvTranspose2d(channels, channels, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """Images of the same shape."""
        y = functional.relu(self.first(functional.pad(x, (1, 1, 1, 1))))
        y = self.grouped(self.point(functional.gelu(self.each(y))))
        return torch.add(x, self.wider(functional.max_pool2d(y, 2)))


def tiny_convolutions() -> Workload:
    """Convolutions and pooling of images, then a perceptron."""
    layers = {
        "stem": nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(inplace=True)),
        "middle": _Convolutions(8),
        "head": nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)),
    }

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, 3, 16, 16, generator=generator), torch.randint(4, (samples,), generator=generator)

    return Workload(Stages(*layers.values()), draw, functional.cross_entropy)


class Begin(nn.Module):
    """Stage that maps word numbers and a mask to floating-point tensors, one a view of another, and passes both on."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.widen = nn.Linear(width, width)

    def forward(self, words: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        x = self.words(words)
        return x, x.transpose(1, 2), self.widen(x), mask, words


class Middle(nn.Module):
    """Writes into one of its inputs, passes one on, makes one without gradient and one that is never read."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor, turned: Tensor, y: Tensor, mask: Tensor, words: Tensor) -> tuple[Tensor, ...]:
        y.tanh_()
        h = self.mix(x + turned.transpose(1, 2)) * mask.unsqueeze(-1)
        return h, y, h.detach() * 2, words, self.mix(y).exp()


class Later(nn.Module):
    """Stage that reads two of five tensors, and passes an unused one on."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)

    def forward(self, h: Tensor, y: Tensor, still: Tensor, words: Tensor, idle: Tensor) -> tuple[Tensor, ...]:
        return torch.relu(self.norm(h) + self.mix(h) * torch.sigmoid(still)), y, words, idle


class End(nn.Module):
    """Stage that computes logits for each word."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.again = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, h: Tensor, y: Tensor, words: Tensor, _idle: Tensor) -> Tensor:
        return self.head(h * y + self.again(words))


def tiny_stages() -> Workload:
    """The user's own stages, between which several tensors pass; two inputs, and targets with a weight of each word."""
    layers = [Begin(30, 8), Middle(8), Later(8), End(30, 8)]

    def draw(samples: int, generator: torch.Generator) -> tuple[tuple[Tensor, Tensor], dict[str, Tensor]]:
        words = torch.randint(30, (samples, 5), generator=generator)
        mask = torch.rand(samples, 5, generator=generator) < 0.8
        factors = torch.rand(samples, 5, generator=generator)
        return (words, mask), {"words": words.roll(1, 1), "factors": factors}

    def loss(logits: Tensor, targets: dict[str, Tensor]) -> Tensor:
        each = nn.functional.cross_entropy(logits.flatten(0, 1), targets["words"].flatten(), reduction="none")
        return (each * targets["factors"].flatten()).mean()

    return Workload(Stages(*layers), draw, loss)


class Beside(nn.Module):
    """A norm and two products that read the same tensor."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.one, self.other = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) to the same."""
        inside = self.first(x).tanh()
        return self.norm(inside) + self.one(inside).relu() + self.other(inside)


def tiny_beside() -> Workload:
    """Two such layers."""

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x, y = (torch.randn(samples, 6, 8, generator=generator) for _ in range(2))
        return x, y

    return Workload(nn.Sequential(Beside(8), Beside(8)), draw, nn.functional.mse_loss)


class Rounding(nn.Module):
    """Scales by a norm in float32, as models of transformers do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        single = x.float()
        return (single * single.square().mean(-1, keepdim=True).rsqrt() * self.weight.float()).type_as(x)


class SingleOnly(nn.Linear):
    """A product that float64 lacks, as that of grouped experts."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            raise RuntimeError("expected float32")
        return super().forward(x)


def tiny_rounding() -> Workload:
    """A perceptron whose norms round to float32."""
    return _perceptron(Rounding(16))


def tiny_single() -> Workload:
    """A perceptron that cannot be computed in float64."""
    return _perceptron(SingleOnly(16, 16))


def tiny_sums() -> Workload:
    """A perceptron whose loss is a sum over the batch, which micro-batches do not preserve."""
    return replace(_perceptron(nn.Tanh()), loss=lambda outputs, targets: (outputs.sum(-1) - targets).square().sum())


def _perceptron(middle: nn.Module) -> Workload:
    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, 8, generator=generator), torch.randint(5, (samples,), generator=generator)

    layers = [nn.Linear(8, 16), middle, nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 5)]
    return Workload(nn.Sequential(*layers), draw, nn.functional.cross_entropy)


HAS_TRANSFORMERS = find_spec("transformers") is not None
WORKLOADS: tuple[Callable[[], Workload], ...] = (tiny_decoder, tiny_vgg, tiny_mlp, tiny_resnet, tiny_stages)
TIED: tuple[Callable[[], Workload], ...] = (tiny_tied, tiny_thrice)
"""Layers that share weights."""
TIED_GRAPHS: tuple[Callable[[], Workload], ...] = (tiny_t5, tiny_gpt2, tiny_bert) * HAS_TRANSFORMERS
CAPTURED: tuple[Callable[[], Workload], ...] = (tiny_gnmt, tiny_unet, *TIED_GRAPHS, *(tiny_llama,) * HAS_TRANSFORMERS)
"""Models that are captured as graphs, some with tied weights."""
EVERY = (*WORKLOADS, *TIED, *CAPTURED)


def blank_model(build: Callable[[], Workload], group: tuple[str, ...] = ()) -> tuple[nn.Module, tuple[str, ...], Held]:
    """The model without values, its layers, and the parameters and buffers of each; ``group``: as in a capture."""
    if (build, group) not in _BLANK_MODELS:
        workload = source.build(build)
        if isinstance(workload.module, nn.Sequential):
            names = tuple(name for name, _ in workload.module.named_children())
            held = held_by(workload.module, names)
        else:
            found = capture_layers(workload.module, source.draw(workload, 2, 0)[0], both_modes=False, group=group)
            names, held = found.names, found.parameters
        _BLANK_MODELS[build, group] = (workload.module, names, held)
    return _BLANK_MODELS[build, group]


_BLANK_MODELS: dict[tuple[Callable[[], Workload], tuple[str, ...]], tuple[nn.Module, tuple[str, ...], Held]] = {}


def layers_of(workload: Workload) -> tuple[str, ...]:
    """Names of the layers of a model that is a chain."""
    return tuple(name for name, _ in workload.module.named_children())


def random_cuts(generator: random.Random, layers: int, stages: int) -> tuple[int, ...]:
    """Random boundaries of ``stages`` stages, none empty."""
    return (0, *sorted(generator.sample(range(1, layers), stages - 1)), layers)
