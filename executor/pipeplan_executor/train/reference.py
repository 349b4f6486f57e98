"""The unsplit model in one process: the measure of what the ranks of a plan compute together."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.frontend.batch import Batch, call, samples, split, tensors
from pipeplan_executor.optim.weighting import shares
from pipeplan_executor.stages.seeds import seeded
from pipeplan_executor.stages.shapes import as_tuple
from pipeplan_executor.stages.split import Fitted, find_row, materialised


def unsplit(
    fitted: Fitted, inputs: Batch, targets: Batch, seed: int, weights: str | Path | None = None
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the whole model, in float64, on the whole batch at once.

    Batch norm computes something else for every size of its batch, and what layers draw depends on the micro-batch. So
    a model that does either sees the plan's micro-batches one after the other, as if gradients were accumulated.
    """
    whole = materialised(fitted, seed=seed, weights=weights, dtype=torch.float64)
    forward: Callable[[Batch], Any] = partial(call, whole)
    layers: Sequence[nn.Module] = ()
    size = fitted.plan.micro_batch if normalises_batches(whole) else samples(inputs)
    if any(fitted.flow.draws):
        size = fitted.plan.micro_batch
        layers = find_row(fitted.plan, whole, split(inputs, size)[0], both_modes=False).layers
        forward = partial(_by_layers, fitted, layers)
    parts = split(targets, size)
    total = 0.0
    with seeded(layers, seed) as moment:
        for number, share in enumerate(shares(fitted.workload.weight, parts)):
            moment.micro_batch = number
            if share:
                loss = fitted.workload.loss(forward(split(inputs, size)[number]), parts[number]) * share
                loss.backward()
                total += float(loss.detach())
    return total, {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in whole.named_parameters(remove_duplicate=False)
    }


def _by_layers(fitted: Fitted, layers: Sequence[nn.Module], inputs: Batch) -> Any:
    """What the model returns, computed by the layers that draw its random numbers."""
    row = tensors(inputs)
    for layer in layers:
        row = as_tuple(layer(*row))
    return fitted.restored(row)


def normalises_batches(module: nn.Module) -> bool:
    """Whether a sample's output depends on the others of its batch."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training for part in module.modules())
