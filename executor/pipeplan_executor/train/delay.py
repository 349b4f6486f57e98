"""`Delay`: two versions of a rank's weights, trained by gradients that are one batch late (``staleness`` 1).

::

    batch                  0        1        2        3
    runs on version        1        0        1        0
    which then is          W(0)     W(0)     W(1)     W(2)
    and becomes            W(1)     W(2)     W(3)     W(4)      while the next batch runs on the other one

A version is a module with leaves, gradients, buckets and works of its own, so that nothing that a graph in flight needs
is written, or exchanged. Frozen weights and buffers are the same in both. They share the optimiser and its state: an
update first writes the newer weights, those of the other version, over its own.
"""

import math
import warnings
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pipeplan.core.errors import PlanError
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Action, Kind
from pipeplan.frontend.batch_mean import normalises_batches
from pipeplan_executor.optim.updates import Updates
from pipeplan_executor.stages.split import Fitted
from pipeplan_executor.stages.stage import StageWork
from pipeplan_executor.stages.stage_module import StageModule


class Version(NamedTuple):
    """Weights of this rank's stages, and what trains them."""

    modules: Mapping[int, StageModule]
    updates: Updates
    stages: Mapping[int, StageWork]


class Delay:
    """The versions of a rank, and which one a batch runs on.

    Parameters
    ----------
    first, second : Version
        With equal weights.
    group : ProcessGroup
        Of all ranks, for sums of losses.

    Attributes
    ----------
    newest : Version
        With the weights of the last update.
    """

    def __init__(self, first: Version, second: Version, group: dist.ProcessGroup, device: torch.device) -> None:
        self._versions, self._next = (first, second), 1
        self.newest = first
        self._of_step: dict[int, Version] = {}
        self._group, self._device = group, device
        self._loss: tuple[dist.Work | None, Tensor] | None = None

    @property
    def earlier(self) -> Version:
        """The version that the next batch runs on; once nothing is in flight, that of the update before the last."""
        return self._versions[self._next]

    def begin(self, step: int) -> Version:
        """Return the version that this step of training runs on."""
        version = self._of_step[step % 2] = self.earlier
        self._next = 1 - self._next
        return version

    def act(self, action: Action, step: int) -> None:
        """Begin the sums of a batch, or wait for them and update the weights."""
        version = self._of_step[step % 2]
        updates = version.updates
        if action.kind is Kind.REDUCE:
            updates.leave(action.stage)
            return
        updates.reduce(action.stage)
        if not updates.needs_all_sums or updates.unscale_and_clip():
            updates.update(action.stage)
        self.newest = version

    def exchange_loss(self, losses: Mapping[int, float] | None, counts: bool) -> float:
        """Begin to sum the losses of a batch over all ranks; return the sum of those before, nan without any.

        ``losses``: None if there is no batch. ``counts``: False if another process has the same ones.
        """
        before, self._loss = self._loss, None
        if losses is not None:
            total = torch.tensor([sum(losses.values()) * counts], dtype=torch.float64, device=self._device)
            self._loss = dist.all_reduce(total, group=self._group, async_op=True), total
        if before is None:
            return math.nan
        if before[0] is not None:
            before[0].wait()
        return float(before[1])


def share_what_stays(first: Mapping[int, StageModule], second: Mapping[int, StageModule]) -> None:
    """Let the second modules have the buffers and the frozen weights of the first ones."""
    for number, module in first.items():
        other = dict(second[number].named_modules())
        for path, part in module.named_modules():
            for name in part._buffers:
                other[path]._buffers[name] = part._buffers[name]
            for name, parameter in part._parameters.items():
                if parameter is not None and not parameter.requires_grad:
                    setattr(other[path], name, parameter)


def check_delayed(plan: Plan, fitted: Fitted) -> None:
    """Refuse what two versions of the weights exclude, and say what batch norm means then.

    Raises
    ------
    PlanError
        At levels 2 and 3 of ZeRO, and for layers that count in attributes.
    """
    if not plan.staleness:
        return
    if plan.sharded:
        raise PlanError(
            f"level {plan.zero} of ZeRO shares out the weights of every pass, and staleness 1 keeps two versions of "
            "them whole; solve again with --zero 0 or 1"
        )
    counting = [name for name, counts in zip(fitted.names, fitted.flow.counts, strict=True) if counts]
    if counting:
        raise PlanError(
            f"{counting[0]} counts its calls in attributes, and with staleness 1 there are two of it, each called for "
            "every second batch: count in a buffer, or plan without staleness"
        )
    if normalises_batches(fitted.blank) and dist.get_rank() == 0:
        warnings.warn(
            "with staleness 1 the running statistics of batch norm are those of the weights that the batches ran with, "
            "one update behind the weights that are evaluated and saved",
            stacklevel=3,
        )
