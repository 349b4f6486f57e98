"""Finished cells of a sweep as JSON files, from which a second run resumes."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from pipeplan.analysis.sweep.experiment import Search
from pipeplan.analysis.sweep.experiment_file import SearchEntry
from pipeplan.analysis.sweep.record import Figures, Record
from pipeplan.core.errors import InputError
from pipeplan.core.machine import Machine
from pipeplan.io.atomic import write_whole
from pipeplan.io.device_file import Number
from pipeplan.io.job_file import job_data, job_from_data
from pipeplan.io.schema import Items, Strict, check
from pipeplan.io.text import json_text, parse_data, read_text

FORMAT = "pipeplan-cell/2"


class FiguresEntry(Strict):
    """One method's plan; see `pipeplan.analysis.sweep.record.Figures`."""

    value: int | None = None
    peaks: Items[int] = ()
    plan: str = ""
    why: str = ""
    outside: str = ""
    at_least: int | None = None

    def figures(self) -> Figures:
        """The figures it describes."""
        return Figures(self.value, self.peaks, self.plan, self.why, self.outside, self.at_least)


class MachineEntry(Strict):
    """The computer; see `pipeplan.core.machine.Machine`."""

    machine: str = ""
    processor: str = ""
    cores: int = 0
    pipeplan: str = ""
    python: str = ""
    ortools: str = ""
    pulp: str = ""
    torch: str = ""


class CellFile(Strict):
    """The whole file; see `pipeplan.analysis.sweep.record.Record`."""

    format: Literal["pipeplan-cell/2"] = "pipeplan-cell/2"
    model: str
    cluster: str
    job: dict[str, Any]
    search: SearchEntry
    fingerprint: str
    outcome: Literal["solved", "infeasible", "failed"]
    answer: FiguresEntry
    beside: dict[str, FiguresEntry] = Field(default_factory=dict)
    bound: int | None = None
    status: str = ""
    stop: str = ""
    wall: Number | None = None
    processor: Number | None = None
    plan_file: str = ""
    error: str = ""
    rung: Annotated[tuple[str, int] | None, BeforeValidator(lambda pair: tuple(pair) if pair else None)] = None
    machine: MachineEntry = MachineEntry()
    part: str = ""


def read_cell(path: Path) -> Record | None:
    """The record in a file; None if there is no such file, or if it is not a cell (which is then solved again)."""
    try:
        file = check(CellFile, parse_data(read_text(path), str(path)), str(path))
        made: dict[str, Any] = {
            "job": job_from_data(file.job, str(path)),
            "search": Search(**file.search.model_dump()),
            "machine": Machine(**file.machine.model_dump()),
            "answer": file.answer.figures(),
            "beside": {name: entry.figures() for name, entry in file.beside.items()},
        }
    except InputError:
        return None
    return Record(**{name: getattr(file, name) for name in _PLAIN}, **made)


def write_cell(record: Record, path: Path) -> None:
    """Write a record for `read_cell`, whole or not at all."""
    made = {
        "job": job_data(record.job),
        "search": asdict(record.search),
        "machine": asdict(record.machine),
        "answer": asdict(record.answer),
        "beside": {name: asdict(figures) for name, figures in record.beside.items()},
    }
    whole = {"format": FORMAT} | {name: getattr(record, name) for name in _PLAIN} | made
    write_whole(path, json_text({name: whole[name] for name in CellFile.model_fields}))


_MADE = ("format", "job", "search", "machine", "answer", "beside")
_PLAIN = tuple(name for name in CellFile.model_fields if name not in _MADE)
"""Fields that are the same in the file and in the record."""
