"""`Reference`: loss and gradients of the unsplit model, the user's own module, beside which a plan is verified.

::

    at once      the module on the whole batch                      models that treat samples apart and draw nothing
    in parts     the module on each micro-batch, gradients added    batch norm, dropout, buffers that change
    by layers    the plan's layers, with the seeds of training      dropout in captured graphs, beside the module
"""

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.frontend.batch import Batch, call, mapped, samples, split, tensors
from pipeplan.frontend.batch_mean import BatchMean, batch_mean, normalises_batches
from pipeplan.frontend.capture.draws import RepeatedDraws
from pipeplan.frontend.capture.flow import as_tuple
from pipeplan.frontend.parameters import named_tensors
from pipeplan.frontend.rewind import Rewind
from pipeplan_executor.optim.updates import shares
from pipeplan_executor.stages.materialise import put, values_of
from pipeplan_executor.stages.seeds import seeded
from pipeplan_executor.stages.split import Fitted, find_sequence

Gradients = dict[str, Tensor]
Result = tuple[float, Gradients]
"""Loss and gradients by name."""


class Reference:
    """The unsplit model with the weights of the plan's stages, on one batch.

    Parameters
    ----------
    inputs, targets : batch
        The whole batch.

    Attributes
    ----------
    whole : torch.nn.Module
    """

    def __init__(
        self,
        fitted: Fitted,
        inputs: Batch,
        targets: Batch,
        seed: int,
        weights: str | Path | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self._fitted, self._inputs, self._targets, self._seed = fitted, inputs, targets, seed
        self.whole = materialised(fitted, seed=seed, weights=weights, dtype=dtype)
        self._rewind = Rewind([self.whole], [self.whole])
        self._mean: BatchMean | None = None
        self.loss = fitted.workload.loss

    @property
    def draws(self) -> bool:
        """True if layers draw random numbers."""
        return any(self._fitted.flow.draws)

    @property
    def loss_draws(self) -> bool:
        """True if the loss is known to draw random numbers."""
        return self._mean is not None and self._mean.loss_draws

    @property
    def is_chain(self) -> bool:
        """True if the plan's layers are submodules of the model."""
        return self._chain is not None

    @property
    def treats_samples_apart(self) -> bool:
        """True if the module can be called with the whole batch at once."""
        flow, mean = self._fitted.flow, self._mean
        if mean is not None and (mean.normalises or mean.rounds or mean.loss_draws):
            return False
        return not (self.draws or any(flow.changed) or any(flow.counts) or normalises_batches(self.whole))

    def at_once(self) -> Result:
        """Return loss and gradients of the module on the whole batch."""
        return self._sum(partial(call, self.whole), samples(self._inputs))

    def in_parts(self, *, repeated: bool = False, backwards: bool = False, step: int = 0) -> Result:
        """Return those of the module on the plan's micro-batches, each of which begins with the same state.

        Parameters
        ----------
        repeated : bool
            Under `RepeatedDraws`: without dropout. Otherwise the layers of a chain draw what they draw in training.
        backwards : bool
            From the last sample to the first, in each micro-batch too: what differs then is rounding.
        step : int
            Step of training, for its random numbers.
        """
        with RepeatedDraws() if repeated else nullcontext():
            size, layers = self._fitted.plan.micro_batch, self._chain or ()
            return self._sum(partial(call, self.whole), size, layers, backwards=backwards, step=step)

    def by_layers(self, step: int = 0) -> Result:
        """Return those of the plan's layers one after the other, which draw what they draw in training."""
        size = self._fitted.plan.micro_batch
        sequence = find_sequence(self._fitted.plan, self.whole, split(self._inputs, size)[0], both_modes=False)
        rewind = Rewind(sequence.layers)  # they hold the module's buffers by themselves
        return self._sum(partial(self._through, sequence.layers), size, sequence.layers, step=step, rewind=rewind)

    def mean(self, tolerance: float) -> BatchMean:
        """Return whether the loss of the batch is the mean over its micro-batches."""
        plan, workload = self._fitted.plan, self._fitted.workload
        weights = shares(workload.weight, split(self._targets, plan.micro_batch))
        batch = self._inputs, self._targets
        self._mean = batch_mean(self.whole, workload.loss, *batch, plan.micro_batch, weights, tolerance)
        return self._mean

    @cached_property
    def _chain(self) -> Sequence[nn.Module] | None:
        """The plan's layers in the model, if they are submodules of it."""
        known = dict(self.whole.named_modules())
        kinds = zip(self._fitted.names, self._fitted.sequence.layers, strict=True)
        if all(type(known.get(name)) is type(layer) for name, layer in kinds):
            return [known[name] for name in self._fitted.names]
        return None

    def _through(self, layers: Sequence[nn.Module], inputs: Batch) -> Any:
        value = tensors(inputs)
        for layer in layers:
            value = as_tuple(layer(*value))
        return self._fitted.restored(value)

    def _sum(
        self,
        forward: Callable[[Batch], Any],
        size: int,
        layers: Sequence[nn.Module] = (),
        *,
        backwards: bool = False,
        step: int = 0,
        rewind: Rewind | None = None,
    ) -> Result:
        """Return the weighted sum of the losses of parts of the batch, and its gradients."""
        given, wanted = split(self._inputs, size), split(self._targets, size)
        if backwards:
            given, wanted = [mapped(x, _reversed) for x in given], [mapped(y, _reversed) for y in wanted]
        weighting = shares(self._fitted.workload.weight, wanted)
        total = 0.0
        with seeded(layers, self._seed) as moment:
            moment.step = step
            for number in reversed(range(len(given))) if backwards else range(len(given)):
                moment.micro_batch = number
                (rewind or self._rewind).back()
                if weighting[number]:
                    loss = self.loss(forward(given[number]), wanted[number]) * weighting[number]
                    loss.backward()
                    total += float(loss.detach())
        self._rewind.back()
        return total, self._gradients()

    def _gradients(self) -> Gradients:
        """Take the gradients out of the module."""
        found: Gradients = {}
        for name, parameter in self.whole.named_parameters(remove_duplicate=False):
            found[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for parameter in self.whole.parameters():
            parameter.grad = None
        return found


def _reversed(tensor: Tensor) -> Tensor:
    return tensor.flip(0)


def materialised(
    fitted: Fitted,
    *,
    seed: int = 0,
    weights: str | Path | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """Return the whole unsplit model, with the weights that `build_stage` gives its stages."""
    whole = copy.deepcopy(fitted.blank)
    names = [name for name, _ in named_tensors(whole)]
    values = values_of(
        fitted.blank,
        fitted.workload.module,
        names,
        seed=seed,
        weights=weights,
        device="cpu",
        dtype=dtype,
        constructed=fitted.constructed,
    )
    for name, value in values.items():
        put(whole, name, value)
    return whole
