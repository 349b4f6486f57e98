"""What an optimiser's step costs, layer by layer."""

from collections.abc import Sequence, Set
from statistics import median
from typing import Any

import torch
from torch import nn

from pipeplan.core.errors import InputError
from pipeplan.core.job import OPTIMIZER_STATE
from pipeplan.frontend.profile.clock import Clock


def update_times(
    layers: Sequence[nn.Module],
    elsewhere: Sequence[Set[str]],
    optimizer: str,
    clock: Clock,
    repeats: int,
    warmup: int,
) -> list[int]:
    """Median nanoseconds of a step on each layer, but for parameters named in ``elsewhere``, and of clearing gradients.

    All layers take their step in turn, on their own parameters, so that these come from memory as they do in training.
    The learning rate is zero and the gradients are finite: it is the arithmetic of a step, and no weight changes.
    """
    steppers: list[Any] = []
    for layer, left_out in zip(layers, elsewhere, strict=True):
        named = layer.named_parameters()
        parameters = [parameter for name, parameter in named if parameter.requires_grad and name not in left_out]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 0.01)
        steppers.append(build_optimizer(optimizer, parameters) if parameters else None)
    times: list[list[int]] = [[] for _ in layers]
    for number in range(warmup + repeats):
        marks = []
        for stepper in steppers:
            start = clock.mark()
            if stepper is not None:
                stepper.step()
                stepper.zero_grad(set_to_none=False)
            marks.append((start, clock.mark()))
        clock.settle()
        if number >= warmup:
            for row, (start, end) in zip(times, marks, strict=True):
                row.append(clock.between(start, end))
    return [0 if stepper is None else round(median(row)) for stepper, row in zip(steppers, times, strict=True)]


def build_optimizer(name: str, parameters: list[nn.Parameter]) -> Any:
    """Torch's optimiser for a name in `OPTIMIZER_STATE`, at a learning rate of zero."""
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=0.0)
    if name == "momentum":
        return torch.optim.SGD(parameters, lr=0.0, momentum=0.9)
    if name == "adam":
        return torch.optim.Adam(parameters, lr=0.0)
    raise InputError(f"optimizer {name!r} is not known; choose from {', '.join(OPTIMIZER_STATE)}")
