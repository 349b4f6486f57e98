"""Schedules in the CSV format of torch.distributed.pipelining.

::

    0F0,0F1,0B0,0B1           one row per rank, one action per cell: stage, kind (F, B, I or W), micro-batch
    ,1F0,1B0,1F1,1B1          an empty cell is a step in which the rank is idle

This is the compute-only form, for torch's runtime that adds the transfers itself (``_PipelineScheduleRuntime``). By
default torch dumps transfers and sharding steps too (``0SEND_F0``, ``0UNSHARD``); we skip them, as simulator and
executor make their own. The reduction and the update of a stage are not part of the compute-only form: torch runs them
after the step. Replicas are not part of it either: a stage belongs to one rank. Torch's data parallelism wraps copies
of the whole pipeline, each with micro-batches of its own, so of equal copies the file has one. Stages of unequal widths
are a different plan.
"""

import csv
import io
import re
from pathlib import Path

from pipeplan.core.errors import InputError
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.io.atomic import write_whole
from pipeplan.io.schema import listing
from pipeplan.io.text import read_text

_PAIR = re.compile(r"\((.*)\)OVERLAP_F_B")
_NOT_COMPUTE = re.compile(r"\d+(SEND|RECV)_[FB]\d+|\d+(UNSHARD|RESHARD|REDUCE_GRAD)")
"""Actions in torch's lists that are not computation."""


def write_torch_csv(schedule: Schedule, path: str | Path) -> None:
    """Write a schedule atomically, without reductions and updates; of equal copies of a pipeline one.

    Raises
    ------
    InputError
        If the schedule replicates stages otherwise or cuts micro-batches into token slices, which the format cannot
        express.
    """
    write_whole(Path(path), torch_csv_text(schedule))


def torch_csv_text(schedule: Schedule) -> str:
    """Return the text of the file."""
    sliced = next((action for action in schedule.actions() if action.slice), None)
    if sliced is not None:
        raise InputError(f"torch's schedule files do not support token slices, and this schedule has {sliced}")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for order in _of_one_copy(schedule):
        writer.writerow(map(str, order))
    return text.getvalue()


def _of_one_copy(schedule: Schedule) -> list[list[Action]]:
    """Return the forwards and backwards of each rank of one pipeline, of which the schedule has equal copies."""
    passes = [[action for action in order if action.kind.per_micro_batch] for order in schedule.orders]
    copies = max(map(len, schedule.homes), default=1)
    if copies == 1:
        return passes
    of = [{action.micro_batch % copies for action in order} for order in passes]
    every = [
        [
            [a._replace(micro_batch=a.micro_batch // copies) for a in row]
            for row, own in zip(passes, of, strict=True)
            if own == {copy}
        ]
        for copy in range(copies)
    ]
    if all(len(own) == 1 for own in of) and all(copy == every[0] for copy in every):
        return every[0]
    stage, homes = next((stage, homes) for stage, homes in enumerate(schedule.homes) if len(homes) > 1)
    raise InputError(
        f"torch's schedule files give every stage to one rank, and stage {stage} runs on {len(homes)} (ranks "
        f"{', '.join(map(str, homes))}), in no equal copies of the whole pipeline; solve with replicas of 1, or with "
        "equally many of all stages (--regular) that share out the micro-batches equally, or keep the plan file"
    )


def read_torch_csv(path: str | Path, family: str = "torch-csv") -> Schedule:
    """Read a schedule from a file; add each stage's update at the end of its rank's row.

    Two actions that torch overlaps (``(0F1;1B2)OVERLAP_F_B``) become two in sequence. Transfers, and steps that gather,
    drop or sum sharded tensors, are left out.

    Raises
    ------
    InputError
        Naming every invalid cell.
    """
    return schedule_from_torch_csv(read_text(Path(path)), str(path), family)


def schedule_from_torch_csv(text: str, where: str, family: str = "torch-csv") -> Schedule:
    """Parse a schedule from the file's text; ``where`` names the source in errors."""
    orders: list[tuple[Action, ...]] = []
    complaints: list[str] = []
    for row_number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        order: list[Action] = []
        for column, cell in enumerate(row, start=1):
            for part in _parts(cell.strip()):
                if _NOT_COMPUTE.fullmatch(part):
                    continue
                try:
                    order.append(_compute(part))
                except InputError as error:
                    complaints.append(f"row {row_number}, column {column}: {error}")
        updates = [Action(Kind.UPDATE, stage) for stage in sorted({action.stage for action in order})]
        orders.append((*order, *updates))
    if complaints or not orders:
        raise InputError(listing(where, complaints or ["there is no row"]))
    return Schedule(family, tuple(orders))


def _parts(cell: str) -> list[str]:
    match = _PAIR.fullmatch(cell)
    parts = match[1].split(";") if match else [cell]
    return [part.strip() for part in parts if part.strip()]


def _compute(text: str) -> Action:
    action = Action.parse(text)
    if not action.kind.per_micro_batch or action.slice:
        raise InputError(f"{text!r} is not a compute action; write stage, F, B, I or W, and micro-batch, like 2F5")
    return action
