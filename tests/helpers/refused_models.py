"""A model that `run` refuses, in functions that other processes can import."""

import torch
from torch import Tensor, nn

from pipeplan.frontend.workload import Workload


class Special(nn.Parameter):
    """A parameter that another library would fill."""


def special() -> nn.Module:
    """A chain with such a parameter."""
    layer = nn.Linear(4, 4)
    layer.bias = Special(torch.zeros(4))
    return nn.Sequential(layer, nn.Linear(4, 4))


def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw a batch of four numbers a sample."""
    return torch.randn(samples, 4, generator=generator), torch.zeros(samples)


def loss(outputs: object, _: Tensor) -> Tensor:
    """Loss of any outputs."""
    found = next(iter(outputs.values())) if isinstance(outputs, dict) else outputs
    return found.square().mean()  # type: ignore[attr-defined]


def refused_workload() -> Workload:
    """The workload of the chain."""
    return Workload(special(), draw, loss)
