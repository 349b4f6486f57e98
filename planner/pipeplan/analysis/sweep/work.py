"""Solution of one cell in a worker process, which always ends with a record."""

import os
import signal
import sys
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeplan.analysis.plug_ins import plugged_in
from pipeplan.analysis.sweep.cell_file import write_cell
from pipeplan.analysis.sweep.cells import Cell, Question
from pipeplan.analysis.sweep.record import Figures, Outcome, Record
from pipeplan.core.errors import InfeasibleError, PipeplanError, UndecidedError
from pipeplan.core.machine import this_machine
from pipeplan.core.wording import counted, zero_suffix

if TYPE_CHECKING:
    from pipeplan.core.plan import Plan
    from pipeplan.search.turns import Baseline


def work(cell: Cell, question: Question, path: Path, plan: Path) -> None:
    """Solve the cell, write its plan and then its record; the main function of a worker process.

    Ctrl-C reaches every process of a terminal. A worker ignores it, because the sweep itself ends its workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)  # an interrupted answer must not become the cell's record
    write_cell(record(cell, question, plan), path)


def _leave(number: int, _: object) -> None:
    sys.exit(128 + number)


def record(cell: Cell, question: Question, plan: Path) -> Record:
    """Record of the cell's answer, whose plan is saved, or of the reason why there is none."""
    began, before = time.monotonic(), _processor()
    found = _solved(cell, question, plan)
    return replace(found, wall=time.monotonic() - began, processor=_processor() - before)


def _processor() -> float:
    """Processor seconds of this process and of its ended children, which solvers and the local search run in."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _solved(cell: Cell, question: Question, plan: Path) -> Record:
    from pipeplan.solve import solve

    fingerprint = question.fingerprint
    how: dict[str, Any] = {name: value for name, value in asdict(question.search).items() if name != "time"}
    try:
        how |= {"time_limit": question.search.time, "price_regular": False, "beside": question.beside}
        with plugged_in(question.plug_ins):
            result = solve(question.model, question.cluster, job=question.job, **how)
        result.plan.save(plan)
    except InfeasibleError as error:
        return without_plan(cell, fingerprint, "infeasible", str(error))
    except UndecidedError as error:
        return replace(without_plan(cell, fingerprint, "failed", str(error)), bound=error.bound, stop=error.stop)
    except Exception as error:
        return without_plan(cell, fingerprint, "failed", error_text(error))
    return replace(
        without_plan(cell, fingerprint, "solved", ""),
        answer=Figures(result.value, tuple(map(int, result.timeline.peaks)), plan_label(result.plan)),
        beside={name: _figures(row) for name, row in result.baselines.items()},
        bound=result.bound,
        status=result.status.value,
        stop=result.stop.value,
        plan_file=f"{plan.parent.name}/{plan.name}",
    )


def error_text(error: Exception) -> str:
    """Text of an error for a row; for an unexpected one with its class and the line that raised it."""
    if isinstance(error, PipeplanError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"


def without_plan(cell: Cell, fingerprint: str, outcome: Outcome, error: str, wall: float | None = None) -> Record:
    """A record without a plan."""
    return Record(
        *cell.names,
        cell.job,
        cell.search,
        fingerprint,
        outcome,
        error=error,
        wall=wall,
        rung=cell.rung,
        machine=this_machine(),
        part=cell.part,
    )


def plan_label(plan: "Plan") -> str:
    """Label of a plan: ``'2 stages of 3-1 replicas, 8 micro-batches of 32, ZeRO-1, 1f1b-so'``."""
    again = sum(len(stage.recompute) for stage in plan.stages)
    recomputed = f", {counted(again, 'layer')} recomputed" if again else ""
    many = counted(plan.micro_batches, "micro-batch")
    size = f"{plan.micro_batch}{zero_suffix(plan.zero)}"
    return f"{plan.shape}, {many} of {size}, {plan.schedule.family}{recomputed}"


def _figures(row: "Baseline") -> Figures:
    return Figures(row.value, tuple(map(int, row.peaks)), row.label, row.why, row.outside, row.bound)
