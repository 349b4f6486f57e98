"""A table as text for people, Markdown for pages, CSV and JSON for programs."""

import csv
import io
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType

from pipeplan.analysis.sweep.largest import deepest, largest
from pipeplan.analysis.sweep.sheets import Sheet, heroes, sheets
from pipeplan.analysis.sweep.table import Table

NOTE = (
    "The gap is pipeplan's, to its bound proved over the plans that `pipeplan solve` lists as searched, for the costs "
    "that it names there. A method's column: its step time as a multiple of pipeplan's, and in brackets the peak "
    "memory of its fullest device as a multiple of that of pipeplan's. '*': its plan lies outside what was asked, and "
    "counts for nothing. '-': it has no plan that fits. '?': the time was over before its turn."
)


def as_csv(table: Table) -> str:
    """Comma-separated, with a header; times in seconds, empty where there is no figure."""
    text = io.StringIO()
    rows = table.rows()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["model"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(table: Table) -> str:
    """One object: the rows, the largest ratios, the deepest members of series."""
    ratios = [
        {
            "method": one.method,
            "other": one.other,
            "figure": one.figure,
            "ratio": one.ratio,
            "model": one.record.model,
            "cluster": one.record.cluster,
            "job": one.record.job,
        }
        for one in largest(table, heroes(table))
    ]
    depths = [
        {name: getattr(one, name) for name in ("series", "cluster", "job", "method", "number", "sure")}
        for one in deepest(table)
    ]
    return json.dumps({"rows": table.rows(), "largest": ratios, "deepest": depths}, indent=2) + "\n"


def as_markdown(table: Table) -> str:
    """Tables for a page."""
    found = [f"**{sheet.title}**\n\n{_markdown(sheet)}" if sheet.title else _markdown(sheet) for sheet in sheets(table)]
    return "\n\n".join([*found, NOTE]) + "\n"


def as_text(table: Table) -> str:
    """Columns for a terminal."""
    found = [f"{sheet.title}\n\n{_columns(sheet)}" if sheet.title else _columns(sheet) for sheet in sheets(table)]
    return "\n\n".join([*found, NOTE]) + "\n"


FORMATS: Mapping[str, Callable[[Table], str]] = MappingProxyType(
    {"text": as_text, "markdown": as_markdown, "csv": as_csv, "json": as_json}
)
"""Every way to write a table by its name."""


def _markdown(sheet: Sheet) -> str:
    lines = [sheet.heads, ["---"] * len(sheet.heads), *sheet.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _columns(sheet: Sheet) -> str:
    lines = [sheet.heads, *sheet.rows]
    widths = [max(len(line[n]) for line in lines) for n in range(len(sheet.heads))]
    lines.insert(1, ["-" * width for width in widths])
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)
