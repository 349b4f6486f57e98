"""Finished cells of a sweep as JSON files, from which a second run resumes."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from pipeplan.analysis.sweep.record import Figures, Record
from pipeplan.core.errors import InputError
from pipeplan.io.atomic import write_whole
from pipeplan.io.device_file import Number
from pipeplan.io.schema import Items, Strict, check
from pipeplan.io.text import json_text, parse_data, read_text

FORMAT = "pipeplan-cell/1"


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


class CellFile(Strict):
    """The whole file; see `pipeplan.analysis.sweep.record.Record`."""

    format: Literal["pipeplan-cell/1"] = "pipeplan-cell/1"
    model: str
    cluster: str
    job: str
    fingerprint: str
    outcome: Literal["solved", "infeasible", "failed"]
    answer: FiguresEntry
    beside: dict[str, FiguresEntry] = Field(default_factory=dict)
    bound: int | None = None
    status: str = ""
    stop: str = ""
    wall: Number = 0.0
    error: str = ""
    rung: Annotated[tuple[str, int] | None, BeforeValidator(lambda pair: tuple(pair) if pair else None)] = None
    version: str = ""
    part: str = ""


def read_cell(path: Path) -> Record | None:
    """The record in a file; None if there is no such file, or if it is not a cell (which is then solved again)."""
    try:
        file = check(CellFile, parse_data(read_text(path), str(path)), str(path))
    except InputError:
        return None
    plain = {name: getattr(file, name) for name in CellFile.model_fields if name not in ("format", "answer", "beside")}
    beside = {name: entry.figures() for name, entry in file.beside.items()}
    return Record(answer=file.answer.figures(), beside=beside, **plain)


def write_cell(record: Record, path: Path) -> None:
    """Write a record for `read_cell`, whole or not at all."""
    plain = {
        name: getattr(record, name) for name in CellFile.model_fields if name not in ("format", "answer", "beside")
    }
    beside = {name: _figures_data(figures) for name, figures in record.beside.items()}
    write_whole(path, json_text({"format": FORMAT, **plain, "answer": _figures_data(record.answer), "beside": beside}))


def _figures_data(figures: Figures) -> dict[str, object]:
    return {name: getattr(figures, name) for name in FiguresEntry.model_fields}
