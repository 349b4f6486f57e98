"""Cross entropy on logits of which each tensor-parallel rank has some classes.

::

    logits [rows, classes / T] ─▶ log softmax ─▶ [rows, classes / T] ─▶ negative log likelihood ─▶ part of the loss
                                  exchanged: largest logit, sum of exponentials of each row        summed: the loss

The backward sends nothing. The gradient of the log softmax needs the sum of each row of what it gets. Every rank knows
that of the likelihood's gradient, since targets are whole. A gradient that anything else had a part in is summed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Shard

from pipeplan_executor.sharding.parts import WHOLE, local, placed, reduced_over, shard, whole_of

_ATEN = torch.ops.aten
_ROW_SUMS = "pipeplan_row_sums"
_PARTIAL = (Partial(),)
_MEAN, _SUM = 1, 2
"""Reductions, as torch numbers them."""


def by_classes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operation of a cross entropy on equal parts of the classes; None if it is none, or the parts are others.

    Raises
    ------
    IndexError
        If a target is none of the classes (on a CPU; elsewhere it counts as one without probability).
    """
    run = _RUNS.get(func)
    return None if run is None or kwargs else run(*args)


def _log_softmax(logits: Tensor, axis: int, half_to_float: bool) -> DTensor | None:
    if not _has_classes(logits, axis):
        return None
    part = shard(logits).float() if logits.dtype in _HALVES else shard(logits)
    own = part - reduced_over(logits, part.amax(axis, keepdim=True), "max")
    own = own - reduced_over(logits, own.exp().sum(axis, keepdim=True)).log()
    return _like(logits, own if half_to_float else own.to(logits.dtype))


def _log_softmax_gradient(gradient: Tensor, made: Tensor, axis: int, dtype: torch.dtype) -> DTensor | None:
    if not (_has_classes(made, axis) and isinstance(gradient, DTensor)):
        return None
    part = local(gradient, made.placements)
    sums = getattr(gradient, _ROW_SUMS, None)
    if sums is None:
        sums = reduced_over(made, part.sum(axis, keepdim=True))
    return _like(made, (part - shard(made).exp() * sums).to(dtype))


def _likelihood(
    made: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int
) -> tuple[DTensor, DTensor] | None:
    if not _has_classes(made, -1) or made.dim() != 2:
        return None
    own, place, each = _targets(made, target, weight, ignored)
    picked = shard(made).gather(1, place.unsqueeze(1)).squeeze(1)
    found = torch.where(own, -picked * each, 0)
    total = each.sum()
    if reduction == _MEAN:
        found = found.sum() / total
    elif reduction == _SUM:
        found = found.sum()
    else:
        total = torch.zeros_like(total)
    return placed(found, made.device_mesh, _PARTIAL), placed(total, made.device_mesh, WHOLE)


def _likelihood_gradient(
    gradient: Tensor,
    made: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
    total: Tensor,
) -> DTensor | None:
    if not _has_classes(made, -1) or made.dim() != 2:
        return None
    own, place, each = _targets(made, target, weight, ignored)
    scale = whole_of(gradient) / whole_of(total) if reduction == _MEAN else whole_of(gradient)
    rows = torch.where(each == 0, 0, -each * scale).unsqueeze(1)
    part = torch.zeros_like(shard(made)).scatter_(1, place.unsqueeze(1), rows * own.unsqueeze(1))
    found = _like(made, part)
    setattr(found, _ROW_SUMS, rows)
    return found


def _targets(made: DTensor, target: Tensor, weight: Tensor | None, ignored: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each row whether its target is a class of this rank, which one, and how much the row counts."""
    target, count = whole_of(target), shard(made).shape[1]
    counted = target != ignored
    if target.device.type == "cpu" and bool((counted & ((target < 0) | (target >= made.shape[1]))).any()):
        raise IndexError(f"a target is none of the {made.shape[1]} classes (and not {ignored}, which is ignored)")
    each = counted.to(made.dtype)
    if weight is not None:
        each = each * whole_of(weight)[torch.where(counted, target, 0)]
    place = target - made.device_mesh.get_local_rank() * count
    own = counted & (place >= 0) & (place < count)
    return own, torch.where(own, place, 0), each


def _has_classes(tensor: Tensor, axis: int) -> bool:
    """Return whether a tensor is split along an axis into equal parts."""
    if not isinstance(tensor, DTensor) or type(tensor.placements[0]) is not Shard:
        return False
    axis %= max(tensor.dim(), 1)
    return bool(tensor.placements[0].dim == axis and tensor.shape[axis] % tensor.device_mesh.size() == 0)


def _like(tensor: DTensor, part: Tensor) -> DTensor:
    placements: tuple[Placement, ...] = tensor.placements
    return placed(part, tensor.device_mesh, placements)


_HALVES = (torch.bfloat16, torch.float16)
_RUNS: Mapping[Any, Callable[..., Any]] = {
    _ATEN._log_softmax.default: _log_softmax,
    _ATEN._log_softmax_backward_data.default: _log_softmax_gradient,
    _ATEN.nll_loss_forward.default: _likelihood,
    _ATEN.nll_loss_backward.default: _likelihood_gradient,
}
