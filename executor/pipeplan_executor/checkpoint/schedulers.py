"""The state of learning-rate schedules, of which every stage has one over its optimiser's groups."""

from typing import Any

from pipeplan.core.errors import InputError
from pipeplan_executor.checkpoint.held import Held
from pipeplan_executor.checkpoint.record import Record


def restore_scheduler(stage: Held, record: Record) -> None:
    """Give a stage's schedule the state that one was saved with; one that was not there before begins anew.

    Raises
    ------
    InputError
        If no stage was saved that has as many groups of parameters.
    """
    if stage.scheduler is None or stage.optimizer is None or not record.schedulers:
        return
    groups = len(stage.optimizer.param_groups)
    fitting = {number: state for number, state in record.schedulers.items() if _groups(record, number) == groups}
    if not fitting:
        raise InputError(
            f"stage {stage.stage} has {groups} groups of parameters, and the schedules that were saved are for "
            f"{', '.join(sorted({str(_groups(record, number)) for number in record.schedulers}))}; use the optimiser "
            "function that made the checkpoint, and let it return the same groups for every stage, empty ones too"
        )
    stage.scheduler.load_state_dict(fitting.get(stage.stage, next(iter(fitting.values()))))


def one_for_all(record: Record) -> dict[str, Any] | None:
    """The state of the schedule of an optimiser of the whole model: that of a stage with all its groups."""
    most = max(record.schedulers, key=lambda number: _groups(record, number), default=None)
    return None if most is None else record.schedulers[most]


def _groups(record: Record, stage: int) -> int:
    return sum(group.stage == stage for group in record.groups)
