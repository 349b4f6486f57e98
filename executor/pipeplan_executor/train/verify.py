"""Comparison of a plan's loss and gradients with the unsplit model's, where only rounding may differ.

The unsplit model is the user's own module, never its captured graph (`train.reference`). In float64, except for models
with operations that float64 lacks. The largest relative difference is the error. Beyond 1e-10 (1e-5 in float32) the
unsplit model is computed again with its micro-batches summed in another order: that is what rounding may explain of
this model, which may round to less than float64 inside::

    pipeline            ─┐ error
    unsplit, all at once ┤
    unsplit, in parts   ─┘ spread: the tolerance is ten times as much

Where layers draw random numbers, dropout is off at first, in the pipeline and in the module. Then both draw what they
draw in training; a captured graph is then compared with its own layers, since the module draws in another order.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeplan.core.errors import InputError, PlanError
from pipeplan.core.plan import Plan
from pipeplan.frontend.capture.draws import RepeatedDraws
from pipeplan.frontend.rewind import Rewind
from pipeplan_executor.sharding.declared import TensorParallel
from pipeplan_executor.stages.fully_sharded import local
from pipeplan_executor.stages.seeds import same_draws
from pipeplan_executor.stages.source import Source, draw
from pipeplan_executor.train.pipeline import Pipeline
from pipeplan_executor.train.reference import Gradients, Reference, Result
from pipeplan_executor.train.verdict import Verdict


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
    mean : float
        Relative difference of losses that rounding explains (see `pipeplan.frontend.batch_mean`).
    """

    dtype: torch.dtype
    tolerance: float
    small: float
    mean: float


DOUBLE, SINGLE = Format(torch.float64, 1e-10, 1e-6, 1e-7), Format(torch.float32, 1e-5, 1e-3, 1e-4)
DELAYED = 4
"""Steps that are compared with ``staleness`` 1."""
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
    rank compares the gradients of its shard. With ``staleness`` 1 gradients belong to other weights than the unsplit
    model trains with: `DELAYED` steps are compared with delayed updates of the unsplit model. What a plan lets its sums
    leave out arrives here.
    """
    plan = replace(plan, priority=tuple(replace(own, lost=()) for own in plan.priority))

    def start(dtype: torch.dtype) -> Pipeline:
        return Pipeline(
            plan if plan.sharded or plan.staleness else replace(plan, zero=0),
            source,
            seed=seed,
            weights=weights,
            dtype=dtype,
            tensor_parallel=tensor_parallel,
            evaluates=False,
            optimizer=partial(_plain, plan) if plan.staleness else None,
        )

    def whole(pipeline: Pipeline, form: Format) -> Reference:
        drawn = draw(pipeline.workload, plan.batch, seed, form.dtype)
        return Reference(pipeline.fitted, *drawn, seed, weights, form.dtype)

    def begin(form: Format) -> tuple[Pipeline, Reference, str, Result]:
        pipeline = start(form.dtype)
        reference = whole(pipeline, form)
        mean = reference.mean(form.mean)
        if mean.loss_draws:
            reference.loss = same_draws(reference.loss)
            pipeline.workload = replace(pipeline.workload, loss=reference.loss)
        return pipeline, reference, mean.changed, _first(reference, mean.changed)

    form = DOUBLE
    try:  # the unsplit model first: if it fails, it fails in every process
        pipeline, reference, changed, expected = begin(form)
    except (RuntimeError, NotImplementedError, PlanError, InputError):
        form = SINGLE
        pipeline, reference, changed, expected = begin(form)
    comparison = _Comparison(pipeline, reference, form, seed)
    return replace(comparison.delayed(expected) if plan.staleness else comparison.verdict(expected), changed=changed)


def _plain(plan: Plan, named: Sequence[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """An optimiser that does not magnify rounding, with no more state than the plan has room for."""
    return torch.optim.SGD([each for _, each in named], momentum=0.0 if plan.optimizer == "sgd" else 0.9)


def _first(reference: Reference, changed: str) -> Result:
    """Return what the pipeline is compared with first: the whole batch, if it is the mean of its micro-batches."""
    at_once = reference.treats_samples_apart and not changed
    return reference.at_once() if at_once else reference.in_parts(repeated=reference.draws)


def _rewound(rewind: Rewind, *_: object) -> None:
    rewind.back()


class _Comparison:
    """A pipeline and the unsplit model, on the same batch in the same format."""

    def __init__(self, pipeline: Pipeline, reference: Reference, form: Format, seed: int) -> None:
        self._pipeline, self._reference, self._form = pipeline, reference, form
        self._batch = draw(pipeline.workload, pipeline.plan.batch, seed, form.dtype)
        fitted = pipeline.fitted
        for number, module in pipeline.modules.items():  # in every replica a micro-batch begins with the same state
            layers = list(zip(fitted.span(number), module.layers, strict=True))
            changing = [layer for place, layer in layers if fitted.flow.changed[place]]
            counting = [layer for place, layer in layers if fitted.flow.counts[place]]
            if changing or counting:
                module.register_forward_pre_hook(partial(_rewound, Rewind(changing, counting)))

    def verdict(self, expected: Result) -> Verdict:
        """Run the pipeline and compare."""
        reference, form = self._reference, self._form
        loss = self._step(repeated=reference.draws)
        error = _everywhere(max(self._differences(loss, expected, form.small)))
        spread, tolerance = None, form.tolerance
        if error > tolerance:  # more than float64 explains: it rounds to less inside, or is wrong
            again = reference.in_parts(repeated=reference.draws, backwards=True)
            spread = _everywhere(max(_apart(again, expected, SINGLE.small)))
            tolerance = max(TIMES * spread if spread <= MOST else 0.0, tolerance)
            if spread <= MOST:  # gradients that are rounding alone are compared with larger ones
                error = _everywhere(max(self._differences(loss, expected, SINGLE.small)))
        if error <= tolerance and reference.draws:
            error = max(error, self._with_draws(expected, max(form.small, SINGLE.small * (spread is not None))))
        return Verdict(error, tolerance, spread, _name(form.dtype), compared=self._compared)

    def delayed(self, first: Result) -> Verdict:
        """Run several steps with gradients one batch late, here and in the unsplit model, and compare the weights."""
        reference, form, pipeline, whole = self._reference, self._form, self._pipeline, self._reference.whole
        begun = {name: each.detach().clone() for name, each in whole.named_parameters(remove_duplicate=False)}
        rate = 0.01 * max(map(_largest, begun.values())) / max(_least(first[1], 1.0), 1e-300)
        plain = _plain(pipeline.plan, [*whole.named_parameters()])
        for optimizer in (plain, *(each.optimizer for each in pipeline.updates.optimizers.values())):
            for group in optimizer.param_groups if optimizer is not None else ():
                group["lr"] = rate
        rows: list[tuple[float, float]] = []
        waiting: Gradients = {}
        with RepeatedDraws() if reference.draws else nullcontext():
            losses = [*[pipeline.step(*self._batch) for _ in range(DELAYED)][1:], pipeline.drain()]
        for loss in losses:
            expected, fresh = reference.in_parts(repeated=reference.draws)
            rows.append((loss, expected))
            _apply(plain, whole, waiting)
            waiting = fresh
        _apply(plain, whole, waiting)
        trained = {n: each.detach() - begun[n] for n, each in whole.named_parameters(remove_duplicate=False)}
        error = _everywhere(
            max([*self._changes(begun, trained), *(_relative(_number(a), _number(b), 1e-300) for a, b in rows)])
        )
        tolerance, spread = form.tolerance, None
        if error > tolerance:
            again = reference.in_parts(repeated=reference.draws, backwards=True)
            spread = _everywhere(max(_apart(again, reference.in_parts(repeated=reference.draws), SINGLE.small)))
            tolerance = max(TIMES * spread if spread <= MOST else 0.0, tolerance)
        compared = f"{DELAYED} updates in one process, each with the gradient of the batch before"
        return Verdict(error, tolerance, spread, _name(form.dtype), compared=compared, what="losses and weights")

    def _changes(self, begun: Mapping[str, Tensor], trained: Mapping[str, Tensor]) -> Iterator[float]:
        """Yield relative differences of what training changed in the weights of this rank's stages."""
        least = _least(trained, self._form.small)
        for name, parameter in self._pipeline.named_parameters():
            shard = self._pipeline.shards.get(name)
            before, expected = (each[name] if shard is None else shard.of(each[name]) for each in (begun, trained))
            yield _relative(parameter.detach() - before, expected, least)

    @property
    def _compared(self) -> str:
        """Return what else was compared than a whole batch at once; empty if that was it."""
        reference = self._reference
        if reference.treats_samples_apart:
            return ""
        text = "the module itself, micro-batch by micro-batch"
        if reference.loss_draws:
            text += ", with the same random numbers in each loss"
        if not reference.draws:
            return text
        if reference.is_chain:
            return f"{text}, without dropout and with it"
        return f"{text}, without dropout; with dropout the captured layers one after the other, not the module"

    def _with_draws(self, first: Result, small: float) -> float:
        """Return the error of a second step, with random numbers, whose gradients are added to those of the first."""
        reference, step = self._reference, self._pipeline.moment.step
        second = reference.in_parts(step=step) if reference.is_chain else reference.by_layers(step)
        both = second[0], {name: first[1][name] + gradient for name, gradient in second[1].items()}
        return _everywhere(max(self._differences(self._step(), both, small)))

    def _step(self, *, repeated: bool = False) -> float:
        with RepeatedDraws() if repeated else nullcontext():
            return self._pipeline.step(*self._batch, update=False)

    def _differences(self, loss: float, reference: Result, small: float) -> Iterator[float]:
        """Yield relative differences of the loss, then of the gradients of this rank's stages, or their shards."""
        expected, gradients = reference
        yield _relative(_number(loss), _number(expected), 1e-300)
        least = _least(gradients, small)
        for name, parameter in self._pipeline.named_parameters():
            found = local(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
            shard = self._pipeline.shards.get(name)
            yield _relative(found, gradients[name] if shard is None else shard.of(gradients[name]), least)


def _apart(one: Result, other: Result, small: float) -> Iterator[float]:
    """Yield the relative differences of two computations of the whole model."""
    yield _relative(_number(one[0]), _number(other[0]), 1e-300)
    least = _least(other[1], small)
    yield from (_relative(found, other[1][name], least) for name, found in one[1].items())


def _apply(optimizer: torch.optim.Optimizer, whole: nn.Module, gradients: Gradients) -> None:
    """Update the unsplit model by gradients, if there are any."""
    if gradients:
        for name, parameter in whole.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
        optimizer.zero_grad()


def _least(gradients: Mapping[str, Tensor], small: float) -> float:
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
