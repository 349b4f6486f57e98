"""A multi-layer perceptron of unequal widths."""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeplan.frontend.workload import Workload


def mlp(widths: tuple[int, ...] = (256, 1024, 512, 2048, 512, 1024, 256), classes: int = 10) -> Workload:
    """Linear layers with GELU between them, and a classifier at the end."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number in range(len(widths) - 1):
        layers[f"linear{number}"] = nn.Linear(widths[number], widths[number + 1])
        layers[f"gelu{number}"] = nn.GELU()
    layers["head"] = nn.Linear(widths[-1], classes)

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(samples, widths[0], generator=generator)
        return inputs, torch.randint(classes, (samples,), generator=generator)

    return Workload(nn.Sequential(layers), draw, functional.cross_entropy)
