"""The optimiser that a plan counted on, one for each stage, and the reduction ahead of it."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pipeplan_executor.reduction import Copied, flattened


class StageOptimizer:
    """Reduces and updates the parameters of one stage on this replica.

    Parameters
    ----------
    module : torch.nn.Module
        Its trainable parameters get gradients of zero that stay in place.
    optimizer : {'sgd', 'momentum', 'adam'}
    rate : float
        Learning rate.
    group : ProcessGroup or None
        The stage's replicas; None if it has one only.
    sharded : bool
        ZeRO-1: each replica updates a share.
    copied : sequence of (parameters, ProcessGroup)
        Parameters of which other stages have copies, with all ranks that have one; in the same order on all of them.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: str,
        rate: float,
        group: dist.ProcessGroup | None = None,
        sharded: bool = False,
        copied: Sequence[Copied] = (),
    ) -> None:
        self._parts = flattened(module, group, sharded, copied)
        own = [parameter for part in self._parts for parameter in part.updated()]
        self._optimizer = _optimizer(optimizer, own, rate) if own else None  # poolings have nothing to update

    @property
    def state(self) -> dict[Any, Any]:
        """The optimiser's state, of this replica's share."""
        return {} if self._optimizer is None else self._optimizer.state

    def begin(self) -> None:
        """Ahead of a step."""
        for part in self._parts:
            part.begin()

    def reduce(self) -> None:
        """R: sum the gradients over the replicas, those of copies over all stages that have one."""
        for part in self._parts:
            part.reduce()

    def update(self) -> None:
        """U: the optimiser's step, and gradients of zero."""
        if self._optimizer is not None:
            self._optimizer.step()
        for part in self._parts:
            part.exchange()
            part.clear()


def _optimizer(name: str, parameters: Sequence[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(parameters, lr=rate)
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9 if name == "momentum" else 0.0)
