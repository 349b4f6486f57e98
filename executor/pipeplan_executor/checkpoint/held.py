"""`TrainingState`, all that a checkpoint saves and restores on one rank; `Held`, one stage of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.core.plan import Plan
from pipeplan_executor.checkpoint.inventory import Inventory, first_names, take
from pipeplan_executor.checkpoint.optimizer import Part
from pipeplan_executor.checkpoint.slices import Slice, boxes_of
from pipeplan_executor.optim.updates import Updates
from pipeplan_executor.runtime.program.order import find_replicas
from pipeplan_executor.sharding.shards import ParameterShard
from pipeplan_executor.stages.seeds import Moment
from pipeplan_executor.stages.ties import Copies

Layout = list[dict[str, Any]]


@dataclass(frozen=True)
class TrainingState:
    """A model in training, as one rank has it.

    Attributes
    ----------
    plan : Plan
    rank : int
        Of the plan.
    model : torch.nn.Module
        The unsplit model, of which only names, shapes and types are read.
    modules : mapping of int to torch.nn.Module
        This rank's stages, by number.
    copies : tuple of Copies
        Weights that stages share.
    cuts : mapping of str to ParameterShard
        By name, the parameters of which a part is here.
    updates : Updates
        Optimisers, schedules and loss scale.
    moment : Moment
        Seed and number of steps so far; `load` sets both.
    accumulates : bool
        Whether gradients of steps without update wait for one.
    """

    plan: Plan
    rank: int
    model: nn.Module
    modules: Mapping[int, nn.Module]
    copies: tuple[Copies, ...]
    cuts: Mapping[str, ParameterShard]
    updates: Updates
    moment: Moment
    accumulates: bool

    def inventory(self) -> Inventory:
        """Of the unsplit model."""
        return take(self.model)


@dataclass(frozen=True)
class Held:
    """One stage of this rank.

    Attributes
    ----------
    stage : int
    replica : int
        Which of the stage's replicas this rank has.
    module : torch.nn.Module
    optimizer : torch.optim.Optimizer or None
        None where there is nothing to update.
    scheduler : object or None
        The learning-rate schedule.
    parts : tuple of Part
        What the optimiser holds.
    copied : frozenset of str
        Names of weights that an earlier stage has too.
    cuts : mapping of str to ParameterShard
        By name, of parameters of which a part is here.
    """

    stage: int
    replica: int
    module: nn.Module
    optimizer: torch.optim.Optimizer | None
    scheduler: Any
    parts: tuple[Part, ...]
    copied: frozenset[str]
    cuts: Mapping[str, ParameterShard] = field(default_factory=dict)

    def own_parts(self) -> tuple[Part, ...]:
        """Those whose state this stage saves: of a weight that several stages copy, the first one does."""
        return tuple(part for part in self.parts if part.name not in self.copied)

    def parameters(self, inventory: Inventory) -> Iterator[tuple[str, Tensor | Slice]]:
        """Each once, by the name it is kept under."""
        firsts = first_names(inventory)
        for name, parameter in self.module.named_parameters():
            value: Tensor | Slice = parameter.detach()
            if name in self.cuts:
                value = _part(name, parameter, parameter, self.cuts).sliced(parameter.detach())
            yield firsts[name], value

    def buffers(self, inventory: Inventory) -> Iterator[tuple[str, Tensor]]:
        """Those that state dicts have, by name."""
        firsts = first_names(inventory)
        for name, buffer in self.module.named_buffers():
            if name in firsts:
                yield firsts[name], buffer


def held(state: TrainingState, inventory: Inventory) -> list[Held]:
    """All stages of this rank."""
    replicas = find_replicas(state.plan.schedule)
    firsts = first_names(inventory)
    found = []
    for number, module in state.modules.items():
        updates = state.updates.optimizers[number]
        later = [copies for copies in state.copies if number in copies.stages[1:]]
        found.append(
            Held(
                number,
                replicas[number].index(state.rank),
                module,
                updates.optimizer,
                updates.scheduler,
                tuple(
                    _part(firsts[p.name], p.updated, p.parameter, state.cuts, p.start, p.end) for p in updates.pieces
                ),
                frozenset(firsts[name] for copies in later for name in copies.on(number)),
                state.cuts,
            )
        )
    return found


def _part(
    name: str,
    held: Tensor,
    parameter: Tensor,
    cuts: Mapping[str, ParameterShard],
    first: int = 0,
    end: int | None = None,
) -> Part:
    """Some numbers of what is here of a parameter, by default all."""
    cut = cuts.get(name)
    corner, whole = (cut.offsets, cut.shape) if cut is not None else ((), tuple(parameter.shape))
    boxes = boxes_of(parameter.shape, first, parameter.numel() if end is None else end, corner)
    return Part(name, held, boxes, whole)


def layout(plan: Plan) -> Layout:
    """Layers and ranks of every stage: where it is the same, each replica finds its own batch norm again."""
    replicas = find_replicas(plan.schedule)
    return [
        {"layers": list(stage.layers), "ranks": list(ranks)} for stage, ranks in zip(plan.stages, replicas, strict=True)
    ]
