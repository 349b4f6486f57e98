"""Whether a batch's loss is the mean over its micro-batches, as plans take it to be.

::

    outputs   [ micro-batch 0 ]  [ micro-batch 1 ]         joined along the samples
    loss           l0                 l1                    l(joined) = (l0 + l1) / 2     a mean over samples
                                                            otherwise                     a plan trains something else

Contrastive losses compare the samples of a batch; sums grow with it; means over words count words. Where outputs cannot
be joined, since the loss is computed in the model, the whole batch's loss is taken. It also shows models whose outputs
for a sample depend on the others of its batch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.frontend.batch import Batch, call, samples, split
from pipeplan.frontend.capture.draws import RepeatedDraws
from pipeplan.frontend.capture.private import TorchDispatchMode, pytree
from pipeplan.frontend.capture.python_values import random_numbers
from pipeplan.frontend.rewind import Rewind

Loss = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class BatchMean:
    """Losses of a batch at once and in micro-batches.

    Attributes
    ----------
    mean : float
        Mean of the micro-batches' losses, as a plan computes it.
    total : float
        Sum of them.
    joined : float or None
        Loss of all outputs at once; None if they cannot be joined.
    whole : float or None
        Loss of the whole batch in one forward; None if the model normalises over a batch, or draws numbers for each
        sample, and would differ anyway.
    tolerance : float
        Relative difference of two losses of the same outputs that rounding explains; ten times as much where a model
        computes them for another number of samples.
    normalises, rounds, loss_draws : bool
        The model normalises over a batch; it computes something in 16 bits; its loss draws random numbers.
    """

    mean: float
    total: float
    joined: float | None
    whole: float | None
    samples: int
    parts: int
    tolerance: float
    normalises: bool = False
    rounds: bool = False
    loss_draws: bool = False

    @property
    def changed(self) -> str:
        """Return what a plan changes, in a sentence; empty if nothing."""
        found = self.joined if self.joined is not None else self.whole
        times = 1 if self.joined is not None else 10
        if found is not None and self._apart(found, self.mean, times):
            numbers = (
                f"the loss of {self.samples} samples at once is {found:.6g}, and the mean over {self.parts} "
                f"micro-batches is {self.mean:.6g}"
            )
            if not self._apart(found, self.total, times):
                return (
                    f"{numbers}: the loss is a sum over samples, and a plan takes the mean of its micro-batches' ones, "
                    "so its gradients are smaller: divide the loss by the number of samples"
                )
            return (
                f"{numbers}: the loss is no mean over samples, so the plan changes what is trained. If it is a mean "
                "over something else (words without padding), count that in Workload.weight; if it compares the "
                "samples of a batch (contrastive losses), micro-batches see fewer of them: choose the micro-batch as "
                "large as the batch is to be"
            )
        if self.whole is not None and self.joined is not None and self._apart(self.whole, self.joined, 10):
            return (
                f"the loss of {self.samples} samples at once is {self.whole:.6g}, and {self.joined:.6g} from outputs "
                f"of {self.parts} micro-batches: the outputs for a sample depend on the others of its batch, so the "
                "plan changes what is trained, unless micro-batches are as large as the batch is to be"
            )
        return ""

    def _apart(self, one: float, other: float, times: int) -> bool:
        return not abs(one - other) <= times * self.tolerance * max(abs(one), abs(other), 1e-30)


def batch_mean(
    module: nn.Module,
    loss: Loss,
    inputs: Batch,
    targets: Any,
    size: int,
    weights: Sequence[float],
    tolerance: float,
) -> BatchMean:
    """Compute the losses of a batch at once and in micro-batches, without gradients; the module's state is restored.

    Parameters
    ----------
    size : int
        Samples of a micro-batch.
    weights : sequence of float
        Share of each micro-batch in the loss.
    tolerance : float
        See `BatchMean`.
    """
    batch = inputs, targets, size
    try:
        found = _Measured(module, loss, graph=False).of(*batch, weights, tolerance)
    except RuntimeError:  # hooks on tensors, and gradients within a forward, need a graph
        found = _Measured(module, loss, graph=True).of(*batch, weights, tolerance)
    return found


class _Measured:
    """Losses of a module on batches, each from the same state, without dropout; ``graph``: with autograd."""

    def __init__(self, module: nn.Module, loss: Loss, graph: bool) -> None:
        self._module, self._loss, self._graph = module, loss, graph
        self._rewind = Rewind([module], [module])
        self._draws, self._seen = RepeatedDraws(), SeesBatchNorm()
        self._loss_draws = self._loss_drops = False

    def of(self, inputs: Batch, targets: Any, size: int, weights: Sequence[float], tolerance: float) -> BatchMean:
        """Return the losses at once and in micro-batches; see `batch_mean`."""
        given = split(inputs, size)
        wanted = [None] * len(given) if targets is None else split(targets, size)
        try:
            with torch.set_grad_enabled(self._graph), self._draws, self._seen:
                outputs = [self._forward(part) for part in given]
                losses = [self._lost(made, part) for made, part in zip(outputs, wanted, strict=True)]
                made = self._forward(inputs)
                drew = self._draws.drew
                together = _joined(outputs, made, samples(inputs), size)
                joined = None if together is None else self._lost(together, targets)
                whole = None if self._seen.seen or drew else self._lost(made, targets)
                if joined is None and self._seen.seen and not drew:
                    losses, whole = self._without_statistics(given, wanted, inputs, targets) or (losses, None)
                if self._loss_draws or not self._repeats(given[0], outputs[0]):
                    joined = whole = None
        finally:
            self._rewind.end()
        mean = sum(weight * value for weight, value in zip(weights, losses, strict=True))
        seen = self._seen.seen, self._seen.rounds, self._loss_draws or self._loss_drops
        return BatchMean(mean, sum(losses), joined, whole, samples(inputs), len(given), tolerance, *seen)

    def _forward(self, batch: Batch) -> Any:
        self._rewind.back()
        return call(self._module, batch)

    def _lost(self, made: Any, targets: Any) -> float:
        """Return the loss of outputs, and notice whether it draws random numbers."""
        before, numbers = self._draws.drew, random_numbers()
        self._draws.drew = self._draws.dropped = False
        value = float(torch.as_tensor(self._loss(made, targets)).detach())
        self._loss_draws = self._loss_draws or self._draws.drew or numbers != random_numbers()
        self._loss_drops = self._loss_drops or self._draws.dropped
        self._draws.drew = before
        return value

    def _repeats(self, batch: Batch, outputs: Any) -> bool:
        """Return whether the module computes the same again; it may count outside itself, or read the time."""
        pairs = zip(pytree.tree_leaves(self._forward(batch)), pytree.tree_leaves(outputs), strict=False)
        return all(
            torch.allclose(one, other, equal_nan=True)
            for one, other in pairs
            if isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape
        )

    def _without_statistics(
        self, given: Sequence[Batch], wanted: Sequence[Any], inputs: Batch, targets: Any
    ) -> tuple[list[float], float] | None:
        """Return the losses with batch norm's running statistics; None if it has none."""
        with _without_statistics(self._module), SeesBatchNorm() as left:
            losses = [self._lost(self._forward(part), want) for part, want in zip(given, wanted, strict=True)]
            whole = self._lost(self._forward(inputs), targets)
        return None if left.seen else (losses, whole)


class SeesBatchNorm(TorchDispatchMode):  # type: ignore[misc]
    """Dispatch mode that detects means over the samples of a batch, as batch norm in training takes them, and 16 bits.

    Attributes
    ----------
    seen, rounds : bool
        Batch norm was called; something was computed in 16 bits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = self.rounds = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name in _NORMS and args[0].shape[0] > 1 and (name.endswith("_with_update") or args[5]):
            self.seen = True  # instance norm has all samples side by side, in a batch of one
        made = func(*args, **(kwargs or {}))
        self.rounds = self.rounds or (isinstance(made, Tensor) and made.dtype in (torch.bfloat16, torch.float16))
        return made


_NORMS = frozenset(
    f"aten::{name}"
    for name in (
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_batch_norm_with_update",
        "cudnn_batch_norm",
        "miopen_batch_norm",
    )
)


def normalises_batches(module: nn.Module) -> bool:
    """Return whether a sample's output depends on the others of its batch (batch norm in training)."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training for part in module.modules())


@contextmanager
def _without_statistics(module: nn.Module) -> Iterator[None]:
    """Context in which batch norm uses its running statistics, whatever the batch."""
    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training]
    for part in norms:
        part.training = False
    try:
        yield
    finally:
        for part in norms:
            part.training = True


def _joined(outputs: Sequence[Any], made: Any, count: int, size: int) -> Any:
    """Return the outputs of micro-batches as one, in the structure of ``made``; None if that is not possible."""
    leaves, structure = pytree.tree_flatten(made)
    columns = [pytree.tree_leaves(each) for each in outputs]
    if any(len(column) != len(leaves) for column in columns):
        return None
    found = []
    for leaf, *parts in zip(leaves, *columns, strict=True):
        together = _together(leaf, parts, count, size)
        if together is None and leaf is not None:
            return None
        found.append(together)
    return pytree.tree_unflatten(found, structure)


def _together(leaf: Any, parts: Sequence[Any], count: int, size: int) -> Any:
    """Return tensors of micro-batches joined along the axis of the samples, or the first if all are alike."""
    if not isinstance(leaf, Tensor):
        return leaf if isinstance(leaf, int | float | str) else None
    first = parts[0]
    if all(part.shape == leaf.shape and torch.equal(part, first) for part in parts):
        return first
    for axis, length in enumerate(leaf.shape):
        others = [(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts]
        if (
            length == count
            and first.shape[axis] == size
            and set(others) == {(*leaf.shape[:axis], *leaf.shape[axis + 1 :])}
        ):
            return torch.cat(list(parts), axis)
    return None
