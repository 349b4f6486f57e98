"""Updates of one rank: of each stage independently, or after an agreement of all stages (clipping, loss scale).

::

    independent           R ── U                          as in the plan
    clipped or scaled     R ─────────── all ranks ── U    a stage waits until the last one has its sums

Gradients are clipped by their global norm over all stages; gradients that several ranks share count once::

    rank 0   stage 0, replica 0   [ sums ]        ── square, add up ──╮
    rank 1   stage 0, replica 1   the same                            ├─ norm ─▶ every gradient × min(1, limit / norm)
    rank 2   stage 1, copy of a weight of stage 0 · [ rest ] ─────────╯
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeplan.core.errors import InputError, PlanError
from pipeplan.core.job import OPTIMIZER_STATE
from pipeplan.core.plan import Plan
from pipeplan.core.units import format_bytes
from pipeplan.costs.layers import optimizer_bytes
from pipeplan_executor.optim.optimise import StageOptimizer
from pipeplan_executor.optim.reduction import Reduced
from pipeplan_executor.stages.precision import LossScale

TINY = 1e-6
"""Added to the norm, as `torch.nn.utils.clip_grad_norm_` does."""


def total_norm(parts: Sequence[Reduced], device: torch.device, group: dist.ProcessGroup | None = None) -> Tensor:
    """Return the 2-norm of all gradients of the model; every process of the group (by default all) calls this after
    its reductions.
    """
    square = torch.zeros((), dtype=torch.float64, device=device)
    for part in parts:
        if part.counts:
            for sums in part.sums:
                square += torch.linalg.vector_norm(sums, dtype=_accumulated(sums.dtype)).double().square()
    dist.all_reduce(square, group=group)
    return square.sqrt()


def clip(parts: Sequence[Reduced], limit: float, norm: Tensor) -> None:
    """Scale the gradients so that their norm is at most ``limit``."""
    factor = (limit / (norm + TINY)).clamp(max=1.0)
    for part in parts:
        for sums in part.sums:
            sums.mul_(factor.to(sums.dtype))


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    """Return the format for sums of squares: squares of 16-bit numbers would overflow."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def require_stated(plan: Plan, parameters: Iterable[Tensor], own: bool) -> None:
    """Refuse a plan that states fewer bytes for each parameter than are kept here.

    Torch's optimisers keep their state in the parameters' format, and so are gradients. ``own``: the caller has an
    optimiser of its own, whose state is measured at the first update.

    Raises
    ------
    PlanError
        With the bytes, and what to change.
    """
    item = max((each.element_size() for each in parameters if each.requires_grad), default=0)
    state = OPTIMIZER_STATE[plan.optimizer] * item
    if not own and plan.state_bytes is not None and plan.state_bytes < state:
        raise PlanError(
            f"the plan states {plan.state_bytes} bytes of optimiser state for each parameter, and torch's "
            f"{plan.optimizer} keeps {state} for parameters of {item}: pass an optimizer of your own that keeps no "
            f"more, or solve again with --state-bytes {state}"
        )
    if plan.gradient_bytes is not None and plan.gradient_bytes < item:
        raise PlanError(
            f"the plan states {plan.gradient_bytes} bytes of gradients for each parameter, and they are kept in the "
            f"parameters' format, {item} bytes; solve again with --gradient-bytes {item}"
        )


def state_excess(optimizer: StageOptimizer, planned: str, stated: int | None = None) -> str | None:
    """Return a warning if the optimiser's state is larger than that of the planned one, otherwise None.

    ``stated`` are the bytes of the plan's state for each parameter, where they were stated.
    """
    counted = sum(
        optimizer_bytes(
            part.numel() * part.element_size(), str(part.dtype.to_real()).removeprefix("torch."), planned, stated
        )
        for part in (piece.updated for piece in optimizer.pieces)
    )
    tensors = [value for state in optimizer.state.values() for value in state.values() if hasattr(value, "nbytes")]
    kept = sum(tensor.nbytes for tensor in tensors if tensor.dim())
    if kept <= counted:
        return None
    more = "" if planned == "adam" else ", or solve again with --optimizer adam"
    return (
        f"{type(optimizer.optimizer).__name__} keeps {format_bytes(kept)} of state, and the plan assumed "
        f"{format_bytes(counted)} ({planned}): it may run out of memory, and updates take longer than predicted. "
        f"Choose an optimiser that keeps less{more}"
    )


class Updates:
    """The optimisers of a rank's stages.

    Parameters
    ----------
    optimizers : mapping of int to StageOptimizer
        Optimisers by stage.
    planned : str
        The optimiser that the plan assumes; a larger state causes a warning after the first update.
    stated : int, optional
        Bytes of its state for each parameter, where the plan states them.
    limit : float, optional
        Clip gradients to this global norm.
    scale : LossScale, optional
        Scale of the gradients.
    group : ProcessGroup, optional
        Of all ranks, for their agreement on the norm; by default the one of everything else.

    Raises
    ------
    InputError
        If the limit is not positive.

    Attributes
    ----------
    optimizers : dict of int to StageOptimizer
    scale : LossScale or None
    norm : Tensor or None
        Global norm of the gradients of the last update before clipping; None without a limit, or after an overflow.
    """

    def __init__(
        self,
        optimizers: Mapping[int, StageOptimizer],
        planned: str,
        device: torch.device,
        limit: float | None = None,
        scale: LossScale | None = None,
        stated: int | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if limit is not None and not limit > 0:
            raise InputError(f"gradients cannot be clipped to a norm of {limit}; give a positive one, or None")
        self.optimizers, self.scale = dict(optimizers), scale
        self.norm: Tensor | None = None
        self._planned, self._stated, self._device, self._limit = planned, stated, device, limit
        self._unchecked, self._group = set(self.optimizers), group

    @property
    def needs_all_sums(self) -> bool:
        """True if no stage may update before all stages have their sums."""
        return self._limit is not None or self.scale is not None

    def begin(self) -> None:
        """Prepare the gradients for a step."""
        if self.scale is not None:
            self.scale.begin()
        for optimizer in self.optimizers.values():
            optimizer.begin()

    def leave(self, stage: int) -> None:
        """Begin R of a stage, which `reduce` waits for."""
        self.optimizers[stage].leave()

    def reduce(self, stage: int, update_follows: bool = False) -> None:
        """R: reduce the gradients of a stage; if an update follows that needs no other sums, they may only begin."""
        self.optimizers[stage].reduce(update_follows and not self.needs_all_sums)

    def finish(self) -> None:
        """Complete the gradients of all stages, also of those without R."""
        for optimizer in self.optimizers.values():
            optimizer.finish()

    def unscale_and_clip(self) -> bool:
        """Unscale and clip the sums as configured; return False if gradients overflowed and the update is skipped.

        Every rank calls this after all its reductions. Gradients that overflowed are cleared.
        """
        parts = [part for optimizer in self.optimizers.values() for part in optimizer.parts]
        if self.scale is not None and not self.scale.unscale([sums for part in parts for sums in part.sums]):
            for optimizer in self.optimizers.values():
                optimizer.skip()
            self.norm = None
            return False
        if self._limit is not None:
            self.norm = total_norm(parts, self._device, self._group)
            clip(parts, self._limit, self.norm)
        return True

    def update(self, stage: int) -> None:
        """U: update the parameters of a stage."""
        optimizer = self.optimizers[stage]
        optimizer.update()
        if stage in self._unchecked:
            self._unchecked.remove(stage)
            warning = state_excess(optimizer, self._planned, self._stated)
            if warning is not None:
                warnings.warn(f"stage {stage}: {warning}", stacklevel=2)


def shares(weight: Callable[[Any], float] | None, targets: Sequence[Any]) -> list[float]:
    """Return the share of each micro-batch in the loss: proportional to `Workload.weight` of its targets, else equal.

    Raises
    ------
    InputError
        If weights are negative, or all zero.
    """
    weights = [1.0 if weight is None else float(weight(part)) for part in targets]
    total = sum(weights)
    if not total > 0 or min(weights) < 0:
        raise InputError(
            f"the micro-batches of this batch weigh {weights}: no weight may be negative, and one must be positive; "
            "leave out batches without weight, like those that are only padding"
        )
    return [weight / total for weight in weights]
