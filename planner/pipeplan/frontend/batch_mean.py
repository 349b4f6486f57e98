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
    """

    mean: float
    total: float
    joined: float | None
    whole: float | None
    samples: int
    parts: int
    tolerance: float

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
    rewind = Rewind([module], [module])

    def forward(batch: Batch) -> Any:
        rewind.back()
        return call(module, batch)

    given = split(inputs, size)
    wanted = [None] * len(given) if targets is None else split(targets, size)

    def of_each() -> tuple[list[Any], list[float]]:
        outputs = [forward(part) for part in given]
        return outputs, [float(loss(made, part)) for made, part in zip(outputs, wanted, strict=True)]

    try:
        with torch.no_grad(), RepeatedDraws() as draws, SeesBatchNorm() as norms:
            outputs, losses = of_each()
            made = forward(inputs)
            together = _joined(outputs, made, samples(inputs), size)
            joined = None if together is None else float(loss(together, targets))
            whole = None if norms.seen or draws.drew else float(loss(made, targets))
            if joined is None and norms.seen and not draws.drew:
                with _without_statistics(module), SeesBatchNorm() as left:
                    _, losses = of_each()
                    whole = float(loss(forward(inputs), targets))
                whole = None if left.seen else whole
    finally:
        rewind.end()
    mean = sum(weight * value for weight, value in zip(weights, losses, strict=True))
    return BatchMean(mean, sum(losses), joined, whole, samples(inputs), len(given), tolerance)


class SeesBatchNorm(TorchDispatchMode):  # type: ignore[misc]
    """Dispatch mode that detects means over the samples of a batch, as batch norm in training takes them.

    Attributes
    ----------
    seen : bool
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name in _NORMS and args[0].shape[0] > 1 and (name.endswith("_with_update") or args[5]):
            self.seen = True  # instance norm has all samples side by side, in a batch of one
        return func(*args, **(kwargs or {}))


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
