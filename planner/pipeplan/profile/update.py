"""What an optimiser's step on one layer costs."""

from statistics import median
from typing import Any

import torch
from torch import nn

from pipeplan.errors import InputError
from pipeplan.job import OPTIMIZER_STATE
from pipeplan.profile.clock import Clock


def update_time(layer: nn.Module, optimizer: str, clock: Clock, repeats: int, warmup: int) -> int:
    """Median nanoseconds of a step, on stand-ins of the layer's parameters, so that no weight changes."""
    stand_ins = []
    for parameter in layer.parameters():
        if parameter.requires_grad:
            stand_in = nn.Parameter(torch.full_like(parameter, 0.5))
            stand_in.grad = torch.full_like(parameter, 0.01)
            stand_ins.append(stand_in)
    if not stand_ins:
        return 0
    stepper = build_optimizer(optimizer, stand_ins)
    times = []
    for _ in range(warmup + repeats):
        start = clock.mark()
        stepper.step()
        end = clock.mark()
        clock.settle()
        times.append(clock.between(start, end))
    return round(median(times[warmup:]))


def build_optimizer(name: str, parameters: list[nn.Parameter]) -> Any:
    """Torch's optimiser for a name in `OPTIMIZER_STATE`."""
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3)
    if name == "momentum":
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
    if name == "adam":
        return torch.optim.Adam(parameters, lr=1e-3)
    raise InputError(f"optimizer {name!r} is not known; choose from {', '.join(OPTIMIZER_STATE)}")
