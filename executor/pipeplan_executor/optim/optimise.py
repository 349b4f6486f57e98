"""The optimiser of one stage, and the reduction ahead of it.

Under ZeRO-1 the user's own optimiser is built for whole parameters, then holds this replica's pieces of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from pipeplan.core.errors import InputError
from pipeplan_executor.optim.reduction import WHOLE, Copied, Named, Parts, Piece, flattened

ELEMENTWISE = (
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.RMSprop,
    optim.Rprop,
    optim.Adadelta,
    optim.ASGD,
)
"""Optimisers whose update of a number depends on that number's own gradient and past only."""


def check_elementwise(optimizer: torch.optim.Optimizer, why: str) -> None:
    """Refuse an optimiser that may look at more than one number at a time; ``why`` it sees some only.

    Raises
    ------
    InputError
        Naming those that are known not to.
    """
    if not (isinstance(optimizer, ELEMENTWISE) or getattr(optimizer, "elementwise", False)):
        raise InputError(
            f"{why}, and {type(optimizer).__name__} is not known to treat each number by itself; do without, or, if it "
            "does, say so in its class: elementwise = True. Known: "
            f"{', '.join(known.__name__ for known in ELEMENTWISE)}"
        )


def onto_pieces(optimizer: torch.optim.Optimizer, pieces: Sequence[Piece]) -> None:
    """Let an optimiser that was built for whole parameters update this replica's pieces of them, group by group.

    Raises
    ------
    InputError
        If it is not known to work number by number, or keeps state already.
    """
    check_elementwise(optimizer, "under ZeRO-1 a replica updates a flat piece of the stage's numbers")
    if optimizer.state:
        raise InputError(
            "under ZeRO-1 an optimiser must begin without state, for it holds pieces of parameters only; "
            f"{type(optimizer).__name__} has some before its first step. Solve without --zero1"
        )
    by_parameter: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_parameter.setdefault(id(piece.parameter), []).append(piece)
    for group in optimizer.param_groups:
        own = [piece for parameter in group["params"] for piece in by_parameter.get(id(parameter), ())]
        group["params"] = [piece.updated for piece in own]
        if "param_names" in group:
            group["param_names"] = [piece.name for piece in own]


OptimizerFactory = Callable[[list[Named]], torch.optim.Optimizer]
"""Builds the optimiser of a stage from its parameters, each behind its name in the unsplit model."""
SchedulerFactory = Callable[[torch.optim.Optimizer], LRScheduler]
"""Builds the learning-rate schedule of an optimiser."""


class StageOptimizer:
    """Reduces and updates the parameters of one stage on this replica.

    Parameters
    ----------
    module : torch.nn.Module
        Its trainable parameters get gradients of zero that stay in place.
    build : callable
        Builds the optimiser. Under ZeRO-1 too it sees whole parameters, so that it may group them by name or shape.
    group : ProcessGroup or None
        The stage's replicas; None if it has one only.
    sharded : bool
        ZeRO-1: each replica updates a share.
    copied : sequence of (named parameters, ProcessGroup)
        Parameters of which other stages have copies, with all ranks that have one; in the same order on all of them,
        under one name for all copies.
    schedule : callable, optional
        Builds the learning-rate schedule, which moves on with every update.
    cut : Parts
        In a team: what of the parameters is here.

    Attributes
    ----------
    optimizer : torch.optim.Optimizer or None
        None if the stage has nothing to update, like one of poolings.
    scheduler : torch.optim.lr_scheduler.LRScheduler or None
    pieces : tuple of Piece
        What the optimiser updates.

    Raises
    ------
    InputError
        If the optimiser cannot work on shares, or the schedule does not move on by itself.
    """

    def __init__(
        self,
        module: nn.Module,
        build: OptimizerFactory,
        group: dist.ProcessGroup | None = None,
        sharded: bool = False,
        copied: Sequence[Copied] = (),
        schedule: SchedulerFactory | None = None,
        cut: Parts = WHOLE,
    ) -> None:
        self.parts = flattened(module, group, sharded, copied, cut)
        named = [each for part in self.parts for each in part.named]
        self.optimizer = build(named) if named else None
        self.pieces: tuple[Piece, ...] = tuple(piece for part in self.parts for piece in part.pieces())
        if self.optimizer is not None and not cut.names.isdisjoint(name for name, _ in named):
            check_elementwise(self.optimizer, "a process of a team updates its parts of parameters")
        if self.optimizer is not None and group is not None and sharded:
            onto_pieces(self.optimizer, self.pieces)
        self.scheduler = _scheduled(schedule, self.optimizer)

    @property
    def state(self) -> dict[Any, Any]:
        """The optimiser's state, of this replica's share."""
        return {} if self.optimizer is None else self.optimizer.state

    def begin(self) -> None:
        """Ahead of a step."""
        for part in self.parts:
            part.begin()

    def reduce(self) -> None:
        """R: sum the gradients over the replicas, those of copies over all stages that have one."""
        for part in self.parts:
            part.reduce()

    def update(self) -> None:
        """U: the optimiser's step, and gradients of zero."""
        if self.optimizer is not None:
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        for part in self.parts:
            part.exchange()
            part.clear()

    def skip(self) -> None:
        """No update this time; gradients become zero all the same."""
        for part in self.parts:
            part.clear()


def planned_optimizer(name: str, rate: float) -> OptimizerFactory:
    """What a plan counted on.

    Parameters
    ----------
    name : {'sgd', 'momentum', 'adam'}
    rate : float
        Learning rate.
    """
    if name == "adam":
        return lambda named: torch.optim.Adam(named, lr=rate)
    return lambda named: torch.optim.SGD(named, lr=rate, momentum=0.9 if name == "momentum" else 0.0)


def _scheduled(build: SchedulerFactory | None, optimizer: torch.optim.Optimizer | None) -> LRScheduler | None:
    if build is None or optimizer is None:
        return None
    scheduler = build(optimizer)
    if isinstance(scheduler, ReduceLROnPlateau):
        raise InputError(
            "ReduceLROnPlateau waits to be told a number, and schedules here move on with every update; build one for "
            "each of pipeline.updates.optimizers in your own loop and call its step(loss): losses are the same on "
            "every rank"
        )
    return scheduler
