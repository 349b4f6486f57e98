"""Comparison of a plan's loss and gradients with the unsplit model's, in float64, where only rounding may differ."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeplan.core.errors import PlanError
from pipeplan.core.plan import Plan
from pipeplan.frontend.batch import Batch, call, samples, split, tensors
from pipeplan_executor.optim.updates import shares
from pipeplan_executor.sharding.declared import TensorParallel
from pipeplan_executor.stages.fully_sharded import local
from pipeplan_executor.stages.seeds import seeded
from pipeplan_executor.stages.shapes import as_tuple
from pipeplan_executor.stages.source import Source, draw
from pipeplan_executor.stages.split import Fitted, find_sequence, materialised
from pipeplan_executor.train.pipeline import Pipeline

if TYPE_CHECKING:
    from pipeplan_executor.train.report import RunReport


def unsplit(
    fitted: Fitted, inputs: Batch, targets: Batch, seed: int, weights: str | Path | None = None
) -> tuple[float, dict[str, Tensor]]:
    """Return loss and gradients of the whole model, in float64, on the whole batch at once.

    Batch norm depends on the size of its batch, and random numbers of layers on the micro-batch. A model with either
    gets the plan's micro-batches one after the other, as with accumulated gradients.
    """
    whole = materialised(fitted, seed=seed, weights=weights, dtype=torch.float64)
    forward: Callable[[Batch], Any] = partial(call, whole)
    layers: Sequence[nn.Module] = ()
    size = fitted.plan.micro_batch if normalises_batches(whole) else samples(inputs)
    if any(fitted.flow.draws):
        size = fitted.plan.micro_batch
        layers = find_sequence(fitted.plan, whole, split(inputs, size)[0], both_modes=False).layers
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
    """Return the model's output, computed layer by layer, so that the layers can be seeded."""
    value = tensors(inputs)
    for layer in layers:
        value = as_tuple(layer(*value))
    return fitted.restored(value)


def normalises_batches(module: nn.Module) -> bool:
    """Return whether a sample's output depends on the others of its batch (batch norm in training)."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training for part in module.modules())


TOLERANCE = 1e-10
"""Largest relative difference of loss and gradients that float64 rounding explains."""
SMALL = 1e-6
"""Fraction of the model's largest gradient; smaller gradients are compared relative to it. Some are zero except for
rounding, like those of a bias that a softmax cancels."""


def worst_error(
    plan: Plan,
    source: Source,
    seed: int,
    weights: str | Path | None = None,
    tensor_parallel: TensorParallel | int | None = None,
) -> float:
    """Return the largest relative difference to the unsplit model, over loss and all gradients of all ranks.

    Every process calls this, computes the unsplit model once and compares its own stages, so nothing large is sent.
    A ZeRO-1 plan is compared without ZeRO-1, under which no rank has all sums of its gradients. At levels 2 and 3 each
    rank compares the gradients of its shard.
    """
    pipeline = Pipeline(
        plan if plan.sharded else replace(plan, zero=0),
        source,
        seed=seed,
        weights=weights,
        dtype=torch.float64,
        tensor_parallel=tensor_parallel,
        evaluates=False,
    )
    inputs, targets = draw(pipeline.workload, plan.batch, seed, torch.float64)
    loss = pipeline.step(inputs, targets, update=False)
    reference, gradients = unsplit(pipeline.fitted, inputs, targets, seed, weights)
    # the loss, then the gradients of this rank's stages, or their shards
    worst = _relative(torch.tensor(loss), torch.tensor(reference), 1e-300)
    least = max(SMALL * max(map(_largest, gradients.values())), 1e-300)
    for name, parameter in pipeline.named_parameters():
        found = local(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        shard = pipeline.shards.get(name)
        wanted = gradients[name] if shard is None else shard.of(gradients[name])
        worst = max(worst, _relative(found, wanted, least))
    shared = torch.tensor([worst], dtype=torch.float64)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return float(shared)


def _relative(found: Tensor, expected: Tensor, least: float) -> float:
    difference = _largest(found - expected)
    return difference / max(_largest(expected), least) if difference == difference else float("inf")


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def check_error(report: "RunReport") -> None:
    """Refuse a run whose gradients differ from the unsplit model's.

    Raises
    ------
    PlanError
        With the difference.
    """
    if report.error is not None and not report.error <= TOLERANCE:
        raise PlanError(
            f"loss and gradients differ from the unsplit model's by {report.error:.1e} (relative, float64); "
            f"at most {TOLERANCE:.0e} is rounding. The model must compute the same every time, and its loss must be "
            "the mean over the samples, or over what Workload.weight counts: sums over the batch are not"
        )
