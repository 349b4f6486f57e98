"""Models small enough to run in many cases, by functions that other processes can import."""

import random
from collections.abc import Callable

import torch
from torch import nn

from pipeplan.workload import Workload
from pipeplan_executor.zoo import decoder, mlp, resnet50, vgg16


def tiny_decoder() -> Workload:
    """Three blocks, a small vocabulary."""
    return decoder(blocks=3, width=16, heads=2, vocabulary=50, length=6, hidden=32)


def tiny_tied() -> Workload:
    """The same with embedding and head tied."""
    return decoder(blocks=3, width=16, heads=2, vocabulary=50, length=6, hidden=32, tied=True)


def tiny_thrice() -> Workload:
    """Three linear layers with one matrix, two of which have one bias too: ties of different layers that overlap."""
    layers = [nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 5)]
    first, second, third = (layers[i] for i in (0, 2, 3))
    second.weight = third.weight = first.weight
    third.bias = second.bias

    def draw(samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(samples, 16, generator=generator), torch.randint(5, (samples,), generator=generator)

    return Workload(nn.Sequential(*layers), draw, nn.functional.cross_entropy)


def tiny_vgg() -> Workload:
    """All 22 layers, a few channels."""
    return vgg16(image=32, classes=7, classifier=12, channels=((4, 4), (4, 4), (6, 6, 6), (6, 6, 6), (8, 8, 8)))


def tiny_mlp() -> Workload:
    """The perceptron of the zoo, narrower."""
    return mlp(widths=(24, 40, 16, 32, 24))


def tiny_resnet() -> Workload:
    """Bottlenecks with and without a projection, with batch norm."""
    return resnet50(image=64, classes=5, width=4, blocks=(1, 2, 1, 1))


WORKLOADS: tuple[Callable[[], Workload], ...] = (tiny_decoder, tiny_vgg, tiny_mlp, tiny_resnet)


def layers_of(workload: Workload) -> tuple[str, ...]:
    """The chain: these models are sequences."""
    return tuple(name for name, _ in workload.module.named_children())


def random_cuts(generator: random.Random, layers: int, stages: int) -> tuple[int, ...]:
    """Boundaries of so many stages, none empty."""
    return (0, *sorted(generator.sample(range(1, layers), stages - 1)), layers)
