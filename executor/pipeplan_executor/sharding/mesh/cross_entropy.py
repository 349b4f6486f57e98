"""Cross entropy on a mesh whose axes split the classes of the logits.

::

    logits [rows, classes / T] ─▶ logarithms of probabilities ─▶ likelihoods of this process's targets ─▶ part of a sum
                                  exchanged: largest logit, sum of exponentials of each row

The backward sends nothing: every process has all targets, so it knows how much each row counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipeplan.frontend.operators.record import Call
from pipeplan_executor.sharding.mesh import calls
from pipeplan_executor.sharding.mesh.moves import MeshAxes, reduced

_ATEN = torch.ops.aten
_HALVES = (torch.bfloat16, torch.float16)
_MEAN = 1
"""The reduction, as torch numbers it; others here are sums."""


def in_cross_entropy(
    call: Call, operand: Callable[[Tensor], Tensor], axes: MeshAxes, along: Sequence[int]
) -> Sequence[Tensor]:
    """Return the results of an operator of a loss whose classes are split along some axes.

    A log softmax passes the logits on: it is made with the likelihoods behind it, which alone read it.

    Raises
    ------
    IndexError
        If a target is none of the classes (on a CPU; elsewhere it counts as one without probability).
    """
    packet = call.operation.overloadpacket
    if packet is _ATEN._log_softmax:
        return (operand(call.given[0]),)
    if packet is not _ATEN.nll_loss_forward:
        return calls.results(call, operand)
    logits, target, weight, reduction, ignored = call.args
    own = _Classes(axes, tuple(along), logits.shape[-1], logits.dtype)
    counts = None if weight is None else operand(weight)
    rows = own.rows(operand(target), counts, ignored, reduction == _MEAN)
    made: Tensor = _CrossEntropy.apply(operand(logits), own, rows)
    return (made.to(call.made[0].dtype),)


class _Rows(NamedTuple):
    """The rows of logits: whether their targets are classes of this process, which ones, how much each counts.

    The loss is a sum over rows, divided by ``total``.
    """

    here: Tensor
    place: Tensor
    counts: Tensor
    total: Tensor


@dataclass(frozen=True)
class _Classes:
    """The classes of which each process has some; ``dtype``: of the logarithms of their probabilities, as kept."""

    axes: MeshAxes
    along: tuple[int, ...]
    count: int
    dtype: torch.dtype

    def rows(self, target: Tensor, weight: Tensor | None, ignored: int, is_mean: bool) -> _Rows:
        """Return what targets say of the rows."""
        counted = target != ignored
        if target.device.type == "cpu" and bool((counted & ((target < 0) | (target >= self.count))).any()):
            raise IndexError(f"a target is none of the {self.count} classes (and not {ignored}, which is ignored)")
        counts = counted.to(torch.float32 if self.dtype in _HALVES else self.dtype)
        if weight is not None:
            counts = counts * weight[torch.where(counted, target, 0)]
        length, number = self.count, 0
        for axis in self.along:
            length //= self.axes.sizes[axis]
            number = number * self.axes.sizes[axis] + self.axes.places[axis]
        place = target - number * length
        here = counted & (place >= 0) & (place < length)
        return _Rows(here, torch.where(here, place, 0), counts, counts.sum() if is_mean else counts.new_ones(()))

    def logarithms(self, logits: Tensor) -> Tensor:
        """Return those of the probabilities of this process's classes."""
        own = logits.float() if logits.dtype in _HALVES else logits
        own = own - self._over(own.amax(-1, keepdim=True), "max")
        return own - self._over(own.exp().sum(-1, keepdim=True), "sum").log()

    def _over(self, part: Tensor, how: str) -> Tensor:
        for axis in self.along:
            part = reduced(part, self.axes, axis, how)
        return part


class _CrossEntropy(torch.autograd.Function):
    """This process's part of the loss, of logits [rows, classes]."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, classes: _Classes, rows: _Rows) -> Tensor:
        logs = classes.logarithms(logits).to(classes.dtype)
        ctx.save_for_backward(logs, *rows)
        ctx.dtype = logits.dtype
        picked = logs.gather(1, rows.place.unsqueeze(1)).squeeze(1)
        return torch.where(rows.here, -picked * rows.counts, 0).sum() / rows.total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        logs, here, place, counts, total = ctx.saved_tensors
        each = torch.where(counts == 0, 0, counts * (gradient / total)).unsqueeze(1)
        made = logs.to(each.dtype).exp().mul_(each)
        made.scatter_add_(1, place.unsqueeze(1), -each * here.unsqueeze(1))
        return made.to(ctx.dtype), None, None
