"""Tables as text, Markdown, CSV, JSON, JSON lines and Parquet."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

from pipeplan.analysis.sweep.sheets import NOTE, highlighted, sheets
from pipeplan.analysis.sweep.spread import over_seeds
from pipeplan.analysis.sweep.table import Table, Value, deepest, largest
from pipeplan.core.errors import InputError
from pipeplan.core.version import installed_version
from pipeplan.io.atomic import write_whole


def as_csv(table: Table) -> str:
    """The rows as CSV with a header; times in seconds, empty if there is no figure."""
    return _csv(table.rows())


def seeds_csv(table: Table) -> str:
    """Mean and spread of the cells that differ in the seed only, as CSV with a header."""
    return _csv([group.row() for group in over_seeds(table.records)])


def _csv(rows: Sequence[Mapping[str, Value]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["model"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(table: Table) -> str:
    """One JSON object: the rows, their spread over seeds, the largest ratios, the deepest members of series."""
    ratios = [
        {
            "method": one.method,
            "other": one.other,
            "figure": one.figure,
            "ratio": one.ratio,
            "model": one.record.model,
            "cluster": one.record.cluster,
            "job": one.record.job_label,
            "search": asdict(one.record.search),
        }
        for one in largest(table, highlighted(table))
    ]
    depths = [asdict(one) for one in deepest(table)]
    seeds = [group.row() for group in over_seeds(table.records)]
    whole = {"rows": table.rows(), "seeds": seeds, "largest": ratios, "deepest": depths}
    return json.dumps(whole, indent=2) + "\n"


def as_json_lines(table: Table) -> str:
    """The rows as JSON objects, one on each line."""
    return "".join(json.dumps(row) + "\n" for row in table.rows())


def as_markdown(table: Table) -> str:
    """The sheets as Markdown tables."""
    return _below_titles([(f"**{title}**" * bool(title), own.as_markdown()) for title, own in sheets(table)])


def as_text(table: Table) -> str:
    """The sheets as aligned columns for a terminal."""
    return _below_titles([(title, own.as_text(rule=True)) for title, own in sheets(table)])


def _below_titles(tables: Sequence[tuple[str, str]]) -> str:
    """Tables below their titles, which may be empty, and the note."""
    return "\n\n".join([*(text for pair in tables for text in pair if text), NOTE]) + "\n"


FORMATS: Mapping[str, Callable[[Table], str]] = MappingProxyType(
    {"text": as_text, "markdown": as_markdown, "csv": as_csv, "json": as_json, "jsonl": as_json_lines}
)
"""Functions that write a table, by the name of the format."""
_SUFFIXES = {"text": "txt", "markdown": "md", "csv": "csv", "json": "json", "jsonl": "jsonl"}


def write_tables(table: Table, folder: Path, name: str, *, parquet: bool = False) -> None:
    """Write a table in every format as ``folder/name.*``, and the spread over seeds as ``folder/name-seeds.csv``."""
    for format_name, suffix in _SUFFIXES.items():
        write_whole(folder / f"{name}.{suffix}", FORMATS[format_name](table))
    write_whole(folder / f"{name}-seeds.csv", seeds_csv(table))
    if parquet:
        write_whole(folder / f"{name}.parquet", as_parquet(table))


def require_parquet() -> None:
    """Refuse to write Parquet without its package."""
    if not installed_version("pyarrow"):
        raise InputError("Parquet needs pyarrow, of the extra 'parquet': pip install 'pipeplan[parquet]'")


def as_parquet(table: Table) -> bytes:
    """The rows as a Parquet file."""
    require_parquet()
    import pyarrow
    from pyarrow import parquet

    rows, sink = table.rows(), io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    return sink.getvalue()
