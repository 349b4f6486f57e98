"""Loading of a checkpoint into training under any plan; each rank reads the parts that it needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeplan.core.errors import InputError
from pipeplan.core.figures import in_one_line
from pipeplan_executor.checkpoint.folder import resolve
from pipeplan_executor.checkpoint.inventory import Inventory, check_same
from pipeplan_executor.checkpoint.optimizer import StoredStates, put
from pipeplan_executor.checkpoint.origin import Origin, open_origin
from pipeplan_executor.checkpoint.record import Record
from pipeplan_executor.checkpoint.slices import Slice, earlier_key, model_key, replica_key
from pipeplan_executor.checkpoint.together import on_all, on_first
from pipeplan_executor.checkpoint.training_state import StageState, TrainingState, layout, stage_states


@dataclass(frozen=True)
class Restored:
    """Position and user data of a loaded checkpoint.

    Attributes
    ----------
    path : Path
        Path of the checkpoint or plain file.
    step : int
        Number of completed steps when it was saved.
    extra : object
        Value that the user saved with it.
    """

    path: Path
    step: int
    extra: Any = None


def load(state: TrainingState, path: str | Path, *, weights_only: bool = False) -> Restored:
    """Continue from a checkpoint, under any plan. Every rank calls this, before a step.

    Under the plan that saved it, training continues bit by bit as it would have, as far as the machine computes
    reproducibly. Under another plan, replicas of a stage begin with the buffers (batch norm's statistics) that the
    first replica of the layer had.

    Parameters
    ----------
    path : path
        A checkpoint; a folder of them, of which the latest is loaded; or a file that `torch.save` wrote of a result of
        `as_plain`: ``{"model": state_dict, "optimizer": state_dict, "step": 20}``, of which only the model is required.
    weights_only : bool
        Load only parameters and buffers; the optimiser, its schedule and the step count start anew.

    Raises
    ------
    InputError
        On every rank, if there is no complete checkpoint, or it is of another model or optimiser.
    """
    found = on_first(lambda: Path(path) if Path(path).is_file() else resolve(path))
    return on_all(lambda: _restored(state, found, weights_only))


def _restored(state: TrainingState, path: Path, weights_only: bool) -> Restored:
    try:
        return _restore(state, path, weights_only)
    except InputError:
        raise
    except Exception as error:  # every rank must learn of it, and content of a wrong kind may raise anything
        raise InputError(f"{path} does not fit this training: {in_one_line(error)}") from error


def _restore(state: TrainingState, path: Path, weights_only: bool) -> Restored:
    inventory = state.inventory()
    origin = open_origin(path, inventory)
    record = origin.record
    check_same(path, record.inventory, inventory)
    stages = stage_states(state, inventory)
    if not weights_only:
        _check_kind(record, stages, path)
    kept = StoredStates(origin.stored, record.values, record.groups)
    same_plan = record.layout == layout(state.plan)
    for stage in stages:
        # empty or live tensors to fill, by key: the model's, then the optimiser's state
        wanted = _model(origin, stage, inventory, same_plan, path)
        earlier = {earlier_key(name): value for name, value in stage.parameters(inventory, earlier=True)}
        late = not weights_only and earlier.keys() <= origin.stored.keys()
        wanted |= earlier if late else {}
        states: dict[str, dict[str, Any]] = {}
        for part in () if weights_only else stage.parts:
            tensors, states[part.name] = kept.allocate(part)
            wanted.update(tensors)
        origin.read(wanted)
        if stage.earlier is not None and not late:  # no batch is in between: the next one runs with these weights
            with torch.no_grad():
                for own, newest in zip(stage.earlier.parameters(), stage.module.parameters(), strict=True):
                    own.copy_(newest)
        if stage.optimizer is not None and not weights_only:
            put(stage.optimizer, stage.parts, states, kept)
            _restore_scheduler(stage, record)
    if weights_only:
        return Restored(path, 0, record.extra)
    if state.updates.scale is not None and record.scaler is not None:
        state.updates.scale.scaler.load_state_dict(record.scaler)
    state.moment.seed = record.seed if record.seed is not None else state.moment.seed
    state.moment.step = record.step
    return Restored(path, record.step, record.extra)


def _model(
    origin: Origin, stage: StageState, inventory: Inventory, same_plan: bool, path: Path
) -> dict[str, Tensor | Slice]:
    """Return parameters and buffers of a stage, by their keys in the checkpoint."""
    found: dict[str, Tensor | Slice] = {model_key(name): value for name, value in stage.parameters(inventory)}
    for name, buffer in stage.buffers(inventory):
        own = replica_key(stage.replica, name)
        found[own if same_plan and own in origin.stored else model_key(name)] = buffer
    absent = [key for key in found if key not in origin.stored]
    if absent:
        raise InputError(f"{path} is damaged: it lacks {', '.join(absent)}")
    return found


def _check_kind(record: Record, stages: Sequence[StageState], path: Path) -> None:
    for stage in stages:
        own = "" if stage.optimizer is None else type(stage.optimizer).__name__
        if own and record.kind and own != record.kind:
            raise InputError(
                f"{path} was saved with {record.kind}, and stage {stage.stage} has {own}; load it with the optimiser "
                "that made it, or its weights alone (weights_only=True)"
            )


def _restore_scheduler(stage: StageState, record: Record) -> None:
    """Restore a stage's learning-rate schedule; without a saved one it starts anew.

    Raises
    ------
    InputError
        If no saved stage has as many parameter groups.
    """
    if stage.scheduler is None or stage.optimizer is None or not record.schedulers:
        return
    groups = len(stage.optimizer.param_groups)
    fitting = {number: state for number, state in record.schedulers.items() if record.groups_of(number) == groups}
    if not fitting:
        raise InputError(
            f"stage {stage.stage} has {groups} groups of parameters, and the schedules that were saved are for "
            f"{', '.join(sorted({str(record.groups_of(number)) for number in record.schedulers}))}; use the optimiser "
            "function that made the checkpoint, and let it return the same groups for every stage, empty ones too"
        )
    kept = fitting.get(stage.stage, next(iter(fitting.values())))
    for name in kept:  # a value in place of a function would fail later
        if name == "optimizer" or callable(getattr(type(stage.scheduler), name, None)):
            raise InputError(f"the saved schedule of the learning rate has a value for {name}, which no schedule keeps")
    stage.scheduler.load_state_dict(kept)
