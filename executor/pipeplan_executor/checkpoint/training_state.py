"""`TrainingState`, the state that a checkpoint saves and restores on one rank; `StageState`, one stage of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pipeplan.core.plan import Plan
from pipeplan_executor.checkpoint.inventory import Inventory, first_names, take
from pipeplan_executor.checkpoint.optimizer import Part
from pipeplan_executor.checkpoint.slices import Slice, boxes_of, pieces_of
from pipeplan_executor.optim.updates import Updates
from pipeplan_executor.sharding.shards import ParameterShard
from pipeplan_executor.stages.fully_sharded import local
from pipeplan_executor.stages.seeds import Moment
from pipeplan_executor.stages.ties import Copies

Layout = list[dict[str, Any]]


@dataclass(frozen=True)
class TrainingState:
    """State of a model in training on one rank.

    Attributes
    ----------
    plan : Plan
    rank : int
        Rank of the plan.
    model : torch.nn.Module
        The unsplit model; only its names, shapes and types are read.
    modules : mapping of int to torch.nn.Module
        This rank's stages, by number.
    copies : tuple of Copies
        Weights that stages share.
    shards : mapping of str to ParameterShard
        Sharded parameters by name.
    updates : Updates
        Optimisers, schedules and loss scale.
    moment : Moment
        Seed and number of steps so far; `load` sets both.
    accumulates : bool
        True if gradients of steps without update wait for one.
    earlier : mapping of int to torch.nn.Module
        The stages with the weights of the update before the last, on which the next batch runs, where gradients are one
        batch late (``staleness`` 1); otherwise none.
    """

    plan: Plan
    rank: int
    model: nn.Module
    modules: Mapping[int, nn.Module]
    copies: tuple[Copies, ...]
    shards: Mapping[str, ParameterShard]
    updates: Updates
    moment: Moment
    accumulates: bool
    earlier: Mapping[int, nn.Module] = field(default_factory=dict)

    def inventory(self) -> Inventory:
        """Return the inventory of the unsplit model."""
        return take(self.model)


@dataclass(frozen=True)
class StageState:
    """One stage of this rank.

    Attributes
    ----------
    stage : int
    replica : int
        Number of this rank's replica of the stage.
    module : torch.nn.Module
    optimizer : torch.optim.Optimizer or None
        None if there is nothing to update.
    scheduler : object or None
        The learning-rate schedule.
    parts : tuple of Part
        Parameters of the optimiser.
    copied : frozenset of str
        Names of weights that an earlier stage has too.
    shards : mapping of str to ParameterShard
        Sharded parameters by name.
    earlier : torch.nn.Module or None
        See `TrainingState`.
    """

    stage: int
    replica: int
    module: nn.Module
    optimizer: torch.optim.Optimizer | None
    scheduler: Any
    parts: tuple[Part, ...]
    copied: frozenset[str]
    shards: Mapping[str, ParameterShard] = field(default_factory=dict)
    earlier: nn.Module | None = None

    def own_parts(self) -> tuple[Part, ...]:
        """Return the parts whose optimiser state this stage saves: the first stage saves that of a copied weight."""
        return tuple(part for part in self.parts if part.name not in self.copied)

    def parameters(self, inventory: Inventory, earlier: bool = False) -> Iterator[tuple[str, Tensor | Slice]]:
        """Yield each parameter once, by the name under which it is stored; of the ``earlier`` weights those trained."""
        firsts = first_names(inventory)
        module = self.earlier if earlier else self.module
        for name, parameter in () if module is None else module.named_parameters():
            if earlier and not parameter.requires_grad:
                continue
            value: Tensor | Slice = local(parameter)
            if name in self.shards:
                value = _part(name, parameter, parameter, self.shards).sliced(value)
            yield firsts[name], value

    def buffers(self, inventory: Inventory) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers that state dicts have, by name."""
        firsts = first_names(inventory)
        for name, buffer in self.module.named_buffers():
            if name in firsts:
                yield firsts[name], buffer


def stage_states(state: TrainingState, inventory: Inventory) -> list[StageState]:
    """Return the states of all stages of this rank."""
    replicas = state.plan.schedule.homes
    firsts = first_names(inventory)
    found = []
    for number, module in state.modules.items():
        updates = state.updates.optimizers[number]
        later = [copies for copies in state.copies if number in copies.stages[1:]]
        found.append(
            StageState(
                number,
                replicas[number].index(state.rank),
                module,
                updates.optimizer,
                updates.scheduler,
                tuple(
                    _part(firsts[p.name], p.updated, p.parameter, state.shards, p.start, p.end) for p in updates.pieces
                ),
                frozenset(firsts[name] for copies in later for name in copies.on(number)),
                state.shards,
                state.earlier.get(number),
            )
        )
    return found


def _part(
    name: str,
    tensor: Tensor,
    parameter: Tensor,
    shards: Mapping[str, ParameterShard],
    first: int = 0,
    end: int | None = None,
) -> Part:
    """Return a range of the local numbers of a parameter, by default all, as a `Part`."""
    shard = shards.get(name)
    own = local(parameter)
    whole = tuple(own.shape) if shard is None else shard.shape
    ranges = tuple(((0, size),) for size in whole) if shard is None else shard.ranges
    boxes = boxes_of(own.shape, first, own.numel() if end is None else end)
    return Part(name, tensor, pieces_of(boxes, ranges), whole)


def layout(plan: Plan) -> Layout:
    """Return layers and ranks of every stage; under an equal layout each replica restores its own buffers."""
    replicas = plan.schedule.homes
    return [
        {"layers": list(stage.layers), "ranks": list(ranks)} for stage, ranks in zip(plan.stages, replicas, strict=True)
    ]
