"""Comparison of a plan's loss and gradients with the unsplit model's, where only rounding may differ.

In float64, except for models with operations that float64 lacks. The largest relative difference is the error. Beyond
1e-10 (1e-5 in float32) the unsplit model is computed again with its micro-batches summed in another order: that is
what rounding may explain of this model, which may round to less than float64 inside::

    pipeline            ─┐ error
    unsplit, all at once ┤
    unsplit, in parts   ─┘ spread: the tolerance is ten times as much
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeplan.core.errors import InputError, PlanError
from pipeplan.core.plan import Plan
from pipeplan.frontend.batch import Batch, call, samples, split, tensors
from pipeplan.frontend.capture.flow import as_tuple
from pipeplan_executor.optim.updates import shares
from pipeplan_executor.sharding.declared import TensorParallel
from pipeplan_executor.stages.fully_sharded import local
from pipeplan_executor.stages.seeds import seeded
from pipeplan_executor.stages.source import Source, draw
from pipeplan_executor.stages.split import Fitted, find_sequence, materialised
from pipeplan_executor.train.pipeline import Pipeline
from pipeplan_executor.train.verdict import Verdict

Gradients = dict[str, Tensor]


def unsplit(
    fitted: Fitted,
    inputs: Batch,
    targets: Batch,
    seed: int,
    weights: str | Path | None = None,
    dtype: torch.dtype = torch.float64,
    *,
    again: bool = False,
) -> tuple[float, Gradients]:
    """Return loss and gradients of the whole model on the whole batch at once.

    Batch norm depends on the size of its batch, and random numbers of layers on the micro-batch. A model with either
    gets the plan's micro-batches one after the other, as with accumulated gradients. ``again``: the same in another
    order, the plan's micro-batches from the last to the first.
    """
    whole = materialised(fitted, seed=seed, weights=weights, dtype=dtype)
    forward: Callable[[Batch], Any] = partial(call, whole)
    layers: Sequence[nn.Module] = ()
    size = fitted.plan.micro_batch if again or normalises_batches(whole) else samples(inputs)
    if any(fitted.flow.draws):
        size = fitted.plan.micro_batch
        layers = find_sequence(fitted.plan, whole, split(inputs, size)[0], both_modes=False).layers
        forward = partial(_by_layers, fitted, layers)
    given, wanted = split(inputs, size), split(targets, size)
    weighting = shares(fitted.workload.weight, wanted)
    total = 0.0
    with seeded(layers, seed) as moment:
        for number in reversed(range(len(given))) if again else range(len(given)):
            moment.micro_batch = number
            if weighting[number]:
                loss = fitted.workload.loss(forward(given[number]), wanted[number]) * weighting[number]
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


@dataclass(frozen=True)
class Format:
    """What rounding explains in a number format.

    Attributes
    ----------
    tolerance : float
        Relative difference that rounding explains in every model.
    small : float
        Fraction of the model's largest gradient; smaller gradients are compared relative to it. Some are zero except
        for rounding, like those of a bias that a softmax cancels.
    """

    dtype: torch.dtype
    tolerance: float
    small: float


DOUBLE, SINGLE = Format(torch.float64, 1e-10, 1e-6), Format(torch.float32, 1e-5, 1e-3)
TIMES = 10
"""The tolerance in terms of what the unsplit model differs by."""
MOST = 1e-3
"""The largest relative difference of sums in another order that is rounding; beyond, the loss is no mean."""


def verify(
    plan: Plan,
    source: Source,
    seed: int,
    weights: str | Path | None = None,
    tensor_parallel: TensorParallel | int | None = None,
) -> Verdict:
    """Compare loss and all gradients of all ranks with the unsplit model's.

    Every process calls this, computes the unsplit model and compares its own stages, so nothing large is sent. A
    ZeRO-1 plan is compared without ZeRO-1, under which no rank has all sums of its gradients. At levels 2 and 3 each
    rank compares the gradients of its shard.
    """

    def start(dtype: torch.dtype) -> Pipeline:
        return Pipeline(
            plan if plan.sharded else replace(plan, zero=0),
            source,
            seed=seed,
            weights=weights,
            dtype=dtype,
            tensor_parallel=tensor_parallel,
            evaluates=False,
        )

    def whole(pipeline: Pipeline, form: Format, again: bool = False) -> tuple[float, Gradients]:
        drawn = draw(pipeline.workload, plan.batch, seed, form.dtype)
        return unsplit(pipeline.fitted, *drawn, seed, weights, form.dtype, again=again)

    form = DOUBLE
    try:  # the unsplit model first: if it fails, it fails in every process
        pipeline = start(form.dtype)
        reference = whole(pipeline, form)
    except (RuntimeError, NotImplementedError, PlanError, InputError):
        form = SINGLE
        pipeline = start(form.dtype)
        reference = whole(pipeline, form)
    loss = pipeline.step(*draw(pipeline.workload, plan.batch, seed, form.dtype), update=False)
    error = _everywhere(max(_differences(pipeline, loss, reference, form.small)))
    if error <= form.tolerance:
        return Verdict(error, form.tolerance, None, _name(form.dtype))
    # more than float64 explains: it rounds to less inside, or is wrong
    spread = _everywhere(max(_apart(whole(pipeline, form, again=True), reference, SINGLE.small)))
    explained = TIMES * spread if spread <= MOST else 0.0
    if explained > form.tolerance:
        error = _everywhere(max(_differences(pipeline, loss, reference, SINGLE.small)))
    return Verdict(error, max(explained, form.tolerance), spread, _name(form.dtype))


def worst_error(
    plan: Plan,
    source: Source,
    seed: int,
    weights: str | Path | None = None,
    tensor_parallel: TensorParallel | int | None = None,
) -> float:
    """Return the error of `verify`."""
    return verify(plan, source, seed, weights, tensor_parallel).error


def _differences(pipeline: Pipeline, loss: float, reference: tuple[float, Gradients], small: float) -> Iterator[float]:
    """Yield the relative differences of the loss, then of the gradients of this rank's stages, or their shards."""
    expected, gradients = reference
    yield _relative(_number(loss), _number(expected), 1e-300)
    least = _least(gradients, small)
    for name, parameter in pipeline.named_parameters():
        found = local(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        shard = pipeline.shards.get(name)
        yield _relative(found, gradients[name] if shard is None else shard.of(gradients[name]), least)


def _apart(one: tuple[float, Gradients], other: tuple[float, Gradients], small: float) -> Iterator[float]:
    """Yield the relative differences of two computations of the whole model."""
    yield _relative(_number(one[0]), _number(other[0]), 1e-300)
    least = _least(other[1], small)
    yield from (_relative(found, other[1][name], least) for name, found in one[1].items())


def _least(gradients: Gradients, small: float) -> float:
    return max(small * max(map(_largest, gradients.values())), 1e-300)


def _everywhere(value: float) -> float:
    """Return the largest value of all processes."""
    shared = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return float(shared)


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _relative(found: Tensor, expected: Tensor, least: float) -> float:
    difference = _largest(found - expected)
    return difference / max(_largest(expected), least) if difference == difference else float("inf")


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0
