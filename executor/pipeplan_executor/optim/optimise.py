"""The optimiser of one stage, and the reduction before it.

From level 1 of ZeRO on the user's own optimiser is built for whole parameters, as far as names, shapes and groups are
concerned, then restricted to this replica's pieces of them.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from pipeplan.core.errors import InputError
from pipeplan.frontend.profile.allocator import OWN_BLOCK, return_free_memory
from pipeplan_executor.optim.buckets import Buckets
from pipeplan_executor.optim.flat import Flat, Named, Piece, Segment
from pipeplan_executor.optim.front_first import updates_of_buckets
from pipeplan_executor.optim.reduction import (
    NONE_SHARDED,
    Copied,
    Reduced,
    ShardedNames,
    begins,
    first_layers,
    flattened,
    sharded,
)
from pipeplan_executor.stages.stage_module import StageModule

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
"""Optimisers whose update of a number depends only on that number's own gradient and past."""


def check_elementwise(optimizer: torch.optim.Optimizer, why: str) -> None:
    """Refuse an optimiser that is not known to update number by number.

    ``why``: the reason that it gets only some numbers, for the message.

    Raises
    ------
    InputError
        With the names of the known elementwise optimisers.
    """
    if not (isinstance(optimizer, ELEMENTWISE) or getattr(optimizer, "elementwise", False)):
        raise InputError(
            f"{why}, and {type(optimizer).__name__} is not known to update each number independently; do without, or, "
            "if it does, declare it in its class: elementwise = True. Known: "
            f"{', '.join(known.__name__ for known in ELEMENTWISE)}"
        )


def restrict_to_pieces(optimizer: torch.optim.Optimizer, pieces: Sequence[Piece], zero: int = 1) -> None:
    """Replace the whole parameters of an optimiser by this replica's pieces of them, group by group.

    Raises
    ------
    InputError
        If it is not known to work number by number, or has state already.
    """
    check_elementwise(
        optimizer, f"at level {zero} of ZeRO a replica updates a flat piece of the stage's numbers (at level 0, all)"
    )
    if optimizer.state:
        raise InputError(
            f"at level {zero} of ZeRO an optimiser must begin without state, since it holds only pieces of parameters; "
            f"{type(optimizer).__name__} has some before its first step. Solve with --zero 0"
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
"""Builds the optimiser of a stage from its parameters, as (name in the unsplit model, parameter)."""
SchedulerFactory = Callable[[torch.optim.Optimizer], LRScheduler]
"""Builds the learning-rate schedule of an optimiser."""


class StageOptimizer:
    """Reduces and updates the parameters of one stage on this replica.

    Parameters
    ----------
    module : torch.nn.Module
        Its trainable parameters get zero gradients at a fixed place in memory.
    build : callable
        Builds the optimiser, at every level of ZeRO from parameters of whole shapes, so that it can group them by name
        or shape.
    group : ProcessGroup or None
        The stage's replicas; None for a single one.
    zero : int
        Level of ZeRO; from 1 on each replica updates a share of the parameters, from 2 on ``module`` is fully sharded.
    copied : sequence of (named parameters, ProcessGroup)
        Parameters of which other stages have copies, with the group of all ranks that have one; in the same order on
        all of them, under one name for all copies.
    schedule : callable, optional
        Builds the learning-rate schedule, which advances with every update.
    sharded_names : ShardedNames
        Names of the sharded parameters under tensor parallelism.
    together : sequence of sequence of int
        Under ZeRO-1: numbers of layers whose gradients are summed together, and those whose parameters are gathered
        together, from the stage's last layers on.
    twin : StageOptimizer, optional
        That of the other version of the stage's weights, where gradients are one batch late (``staleness`` 1). Both
        share its optimiser and schedule: each update writes this version from the newer one.

    Attributes
    ----------
    optimizer : torch.optim.Optimizer or None
        None if the stage has no parameters, like one of poolings.
    scheduler : torch.optim.lr_scheduler.LRScheduler or None
    pieces : tuple of Piece
        Pieces of parameters that the optimiser updates.
    buckets : Buckets or None
        Gradients that are summed while the last backward runs; None if all are summed by R.

    Raises
    ------
    InputError
        If the optimiser cannot work on shares, or the schedule needs an argument to advance.
    """

    def __init__(
        self,
        module: nn.Module,
        build: OptimizerFactory,
        group: dist.ProcessGroup | None = None,
        zero: int = 0,
        copied: Sequence[Copied] = (),
        schedule: SchedulerFactory | None = None,
        sharded_names: ShardedNames = NONE_SHARDED,
        together: Sequence[Sequence[int]] = (),
        twin: "StageOptimizer | None" = None,
    ) -> None:
        self.parts: tuple[Reduced, ...]
        self._module = module if isinstance(module, StageModule) else None
        self._gathers: list[tuple[Flat, Segment]] = []
        sharded_layers = None if self._module is None else self._module.sharded_layers
        partial = None if sharded_layers is None else sharded_layers.partial
        if zero > 1 and group is not None:
            self.parts = sharded(module, sharded_names, partial)
        else:
            layers = [module] if self._module is None else [*self._module.layers]
            cuts = sorted({first for sizes in together for first in begins(sizes, len(layers))})
            own = flattened(module, group, zero == 1, copied, sharded_names, first_layers(layers), cuts, partial)
            self.parts = own
            self._gathers = [(part, segment) for part in own for segment in part.segments]
            self._gathers.sort(key=lambda each: (not each[0].copied, each[1].layer))  # as the next forward needs them
        named = [each for part in self.parts for each in part.named]
        self.optimizer = None
        if named:
            self.optimizer = build(named) if twin is None else twin.optimizer
        self.pieces: tuple[Piece, ...] = tuple(piece for part in self.parts for piece in part.pieces())
        self._twin = twin
        self.scheduler: LRScheduler | None = None if twin is None else twin.scheduler
        if twin is not None:
            twin._twin = self
        elif self.optimizer is not None:
            if any(sharded_names.of(name) for name, _ in named):
                check_elementwise(self.optimizer, "a tensor-parallel rank updates shards of parameters")
            if group is not None and zero:
                restrict_to_pieces(self.optimizer, self.pieces, zero)
            self.scheduler = _scheduled(schedule, self.optimizer)
        self.buckets: Buckets | None = None
        self._updated, self._late = False, False
        # temporaries of its update are blocks of their own: free memory of the heap, left by activations, serves none
        self._returns = any(
            piece.updated.nbytes >= OWN_BLOCK and piece.updated.device.type == "cpu" for piece in self.pieces
        )

    @property
    def state(self) -> dict[Any, Any]:
        """State of the optimiser, for this replica's share; with sums of a plan's order, after `wait`."""
        return {} if self.optimizer is None else self.optimizer.state

    def begin(self) -> None:
        """Prepare the gradients for a step."""
        for part in self.parts:
            part.begin()
        if self.buckets is not None:
            self.buckets.begin()

    def reduce(self, update_follows: bool = False) -> None:
        """R: sum the gradients over replicas, those of copies over all stages that have one.

        Where the plan orders the sums and an update follows alone, they only begin; `update` says who waits for them.
        The first update of all is not so: schedules and checks of the optimiser's state find it done.
        """
        self._late = update_follows and self._updated and self.buckets is not None and self.buckets.ordered
        if self.buckets is not None:
            if self.buckets.ordered:
                self.wait()  # a replica without micro-batches has not
            self.buckets.finish()
        if not self._late:
            for part in self.parts:
                part.reduce()

    def leave(self) -> None:
        """Begin R: what `reduce` waits for."""
        if self.buckets is not None:
            self.buckets.finish()
        for part in self.parts:
            part.leave(0)

    def finish(self) -> None:
        """Complete gradients of which each tensor-parallel rank has a part, if no R has done so."""
        for part in self.parts:
            part.finish()

    def update(self) -> None:
        """U: run the optimiser and its schedule, begin to gather the parameters, zero the gradients.

        Where a parameter is large, free memory of the heap is returned to the system first. If R has not waited for its
        sums, the next forward of each layer does, and updates it: with the learning rate of now.
        """
        if self._late:
            self._update_later()
            return
        self._updated = True
        self.finish()
        self.wait()  # a replica without micro-batches has not
        if self._returns:
            return_free_memory()
        if self._twin is not None:
            self._take_over([each.updated for each in self._twin.pieces], [each.updated for each in self.pieces])
        if self.optimizer is not None:
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self._gather()
        for part in self.parts:
            part.clear()

    def _update_later(self) -> None:
        assert self._module is not None and self.buckets is not None
        if self._returns:
            return_free_memory()
        if self.optimizer is not None:
            for layer, update in updates_of_buckets(self.buckets, self.optimizer):
                self._module.arriving.setdefault(layer, []).append(update)
        if self.scheduler is not None:
            self.scheduler.step()

    def wait(self) -> None:
        """Wait until all parameters of the last update are there."""
        if self._module is not None:
            self._module.wait()

    def _gather(self) -> None:
        """Begin to give every replica all parameters; the module waits for them where it reads them."""
        for part, segment in self._gathers:
            assert self._module is not None
            self._module.arriving.setdefault(segment.layer, []).append(part.gather(segment))

    def skip(self) -> None:
        """Zero the gradients without an update."""
        if self._twin is not None:
            self._twin.wait()
            self._take_over(list(self._twin.parameters()), list(self.parameters()))
        for part in self.parts:
            part.clear()

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that are trained."""
        for part in self.parts:
            for _, parameter in part.named:
                yield parameter

    def _take_over(self, newer: Sequence[Tensor], these: Sequence[Tensor]) -> None:
        """Write the twin's values into this version, and let the shared optimiser and its state be of this one.

        No graph holds these parameters any more: the last backward of their batch has run.
        """
        assert self._twin is not None
        with torch.no_grad():
            for own, other in zip(these, newer, strict=True):
                own.copy_(other)
        if self.optimizer is None:
            return
        here = {id(other.updated): own.updated for own, other in zip(self.pieces, self._twin.pieces, strict=True)}
        for group in self.optimizer.param_groups:
            group["params"] = [here.get(id(each), each) for each in group["params"]]
        for other, state in list(self.optimizer.state.items()):
            if id(other) in here:
                del self.optimizer.state[other]
                self.optimizer.state[here[id(other)]] = state


def _scheduled(build: SchedulerFactory | None, optimizer: torch.optim.Optimizer | None) -> LRScheduler | None:
    if build is None or optimizer is None:
        return None
    scheduler = build(optimizer)
    if isinstance(scheduler, ReduceLROnPlateau):
        raise InputError(
            "ReduceLROnPlateau needs a metric, and schedules here advance with every update; build one for "
            "each of pipeline.updates.optimizers in your own loop and call its step(loss): losses are the same on "
            "every rank"
        )
    return scheduler
