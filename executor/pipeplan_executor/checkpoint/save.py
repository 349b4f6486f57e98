"""Saving of a checkpoint: every rank writes its tensors, the first one the record; complete or not at all."""

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeplan.core.errors import InputError
from pipeplan_executor.checkpoint import folder as places
from pipeplan_executor.checkpoint.inventory import Inventory, check_complete
from pipeplan_executor.checkpoint.lock import hold
from pipeplan_executor.checkpoint.optimizer import OptimizerState, take
from pipeplan_executor.checkpoint.record import Group, Record, packed, write_record
from pipeplan_executor.checkpoint.slices import Slice, earlier_key, model_key, replica_key, write
from pipeplan_executor.checkpoint.together import on_all, on_first
from pipeplan_executor.checkpoint.training_state import StageState, TrainingState, layout, stage_states
from pipeplan_executor.runtime.exchange import gather_bytes


@dataclass(frozen=True)
class _RankState:
    """Part of the record that a rank sends to the first one."""

    keys: tuple[str, ...]
    kinds: tuple[str, ...]
    groups: tuple[Group, ...]
    values: dict[str, dict[str, Any]]
    schedulers: dict[int, dict[str, Any]]


def save(state: TrainingState, folder: str | Path, *, keep: int = 3, extra: Any = None) -> Path:
    """Save the state that a later run needs as ``folder/step-N``. Every rank calls this, between two updates.

    Parameters
    ----------
    folder : path
        On a file system that all ranks see.
    keep : int
        Number of newest checkpoints that are kept.
    extra : object
        Value that `load` returns, taken from the first rank: an epoch, a place in the data. Numbers, texts, tensors,
        and lists, tuples and dicts of them.

    Returns
    -------
    Path
        Path of the checkpoint.

    Raises
    ------
    InputError
        On every rank, if one of them cannot write, or gradients wait for an update. Earlier checkpoints stay.
    """
    if keep < 1:
        raise InputError(f"keep is {keep}; at least the newest checkpoint must stay")
    if state.accumulates:
        raise InputError("gradients of steps without update are not saved; save after a step that updates")
    step, inventory = state.moment.step, state.inventory()
    part = on_first(lambda: _begin(Path(folder), step))
    stages = stage_states(state, inventory)
    # optimiser states, then all tensors of this rank by key
    taken = on_all(lambda: [take(one.optimizer, one.own_parts(), one.stage) for one in stages if one.optimizer])
    tensors = _of_model(stages, inventory)
    for one in taken:
        tensors.update(one.tensors)
    write(part, tensors)
    # the first rank writes the record of all ranks
    own = on_all(lambda: packed(asdict(_rank_state(stages, taken, tensors))))
    everyone = [_unpacked(data) for data in gather_bytes(own)]

    def finish() -> Path:
        write_record(_record(state, inventory, everyone, extra), part)
        return places.publish(part, step, keep)

    return on_first(finish)


def _begin(folder: Path, step: int) -> Path:
    hold(folder)
    return places.begin(folder, step)


def _unpacked(data: bytes) -> _RankState:
    fields = torch.load(io.BytesIO(data), weights_only=True)
    return _RankState(**{**fields, "groups": tuple(Group(**group) for group in fields["groups"])})


def _of_model(stages: Sequence[StageState], inventory: Inventory) -> dict[str, Tensor | Slice]:
    found: dict[str, Tensor | Slice] = {}
    for stage in stages:
        found |= {model_key(name): parameter for name, parameter in stage.parameters(inventory)}
        found |= {earlier_key(name): parameter for name, parameter in stage.parameters(inventory, earlier=True)}
        for name, buffer in stage.buffers(inventory):
            found[replica_key(stage.replica, name) if stage.replica else model_key(name)] = buffer
    return found


def _rank_state(
    stages: Sequence[StageState], taken: Sequence[OptimizerState], tensors: dict[str, Tensor | Slice]
) -> _RankState:
    optimizers = [stage for stage in stages if stage.optimizer is not None]
    return _RankState(
        tuple(tensors),
        tuple(type(stage.optimizer).__name__ for stage in optimizers),
        tuple(group for one in taken for group in one.groups),
        {name: values for one in taken for name, values in one.values.items()},
        {stage.stage: stage.scheduler.state_dict() for stage in optimizers if stage.scheduler is not None},
    )


def _record(state: TrainingState, inventory: Inventory, everyone: Sequence[_RankState], extra: Any) -> Record:
    prefix = model_key("")
    keys = {key.removeprefix(prefix) for one in everyone for key in one.keys if key.startswith(prefix)}
    check_complete(keys, inventory)
    kinds = sorted({kind for one in everyone for kind in one.kinds})
    if len(kinds) > 1:
        raise InputError(f"stages have optimisers of different kinds ({', '.join(kinds)}), which cannot be saved")
    scale = state.updates.scale
    return Record(
        step=state.moment.step,
        seed=state.moment.seed,
        model=state.plan.model,
        inventory=inventory,
        layout=layout(state.plan),
        kind=kinds[0] if kinds else "",
        groups=_joined([group for one in everyone for group in one.groups]),
        values={name: values for one in everyone for name, values in one.values.items()},
        schedulers={stage: kept for one in everyone for stage, kept in one.schedulers.items()},
        scaler=None if scale is None else scale.scaler.state_dict(),
        extra=extra,
    )


def _joined(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Merge the shares that replicas have of each stage's parameter groups."""
    found: dict[tuple[int, int], Group] = {}
    for group in groups:
        place = group.stage, group.index
        names = found[place].names if place in found else ()
        more = tuple(name for name in group.names if name not in names)
        found[place] = Group(*place, group.options, names + more)
    return tuple(found[place] for place in sorted(found))
