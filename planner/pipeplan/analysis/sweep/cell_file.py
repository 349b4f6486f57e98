"""Finished cells of a sweep as JSON files, from which a second run resumes."""

from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from pipeplan.analysis.sweep.record import Record
from pipeplan.core.errors import InputError
from pipeplan.io.atomic import write_whole
from pipeplan.io.job_file import job_data, job_from_data
from pipeplan.io.text import json_text, parse_data, read_text

FORMAT = "pipeplan-cell/2"
_RECORDS = TypeAdapter(Record)


def read_cell(path: Path) -> Record | None:
    """The record in a file; None if there is no such file, or if it is not a cell (which is then solved again)."""
    try:
        data = parse_data(read_text(path), str(path))
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            return None
        return _RECORDS.validate_python(data | {"job": job_from_data(data.get("job"), str(path))})
    except (InputError, ValidationError):
        return None


def write_cell(record: Record, path: Path) -> None:
    """Write a record for `read_cell`, whole or not at all."""
    write_whole(path, json_text({"format": FORMAT} | asdict(record) | {"job": job_data(record.job)}))
