"""A table as text for people, Markdown for pages, CSV and JSON for programs."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from pipeplan.search.baselines import LATE
from pipeplan.sweep.largest import ANSWER, deepest, largest
from pipeplan.sweep.record import Figures, Record
from pipeplan.sweep.table import Table
from pipeplan.units import format_bytes, format_time

HEROES = (ANSWER, "bapipe-greedy")
"""Whose largest advantages are listed under the table."""
NOTE = (
    "A method's column: its step time as a multiple of pipeplan's, and in brackets the peak memory of its fullest "
    "device as a multiple of that of pipeplan's. '-': it has no plan that fits. '?': the time was over before its turn."
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
        for one in largest(table, _heroes(table))
    ]
    depths = [
        {"series": one.series, "cluster": one.cluster, "job": one.job, "method": one.method, "number": one.number}
        for one in deepest(table)
    ]
    return json.dumps({"rows": table.rows(), "largest": ratios, "deepest": depths}, indent=2) + "\n"


def as_markdown(table: Table) -> str:
    """Tables for a page."""
    parts = [_markdown(*grid) for grid in _grids(table)]
    return "\n\n".join([parts[0], NOTE, *parts[1:]]) + "\n"


def as_text(table: Table) -> str:
    """Columns for a terminal."""
    parts = [_columns(*grid) for grid in _grids(table)]
    return "\n\n".join([parts[0], NOTE, *parts[1:]]) + "\n"


FORMATS: Mapping[str, Callable[[Table], str]] = MappingProxyType(
    {"text": as_text, "markdown": as_markdown, "csv": as_csv, "json": as_json}
)
"""Every way to write a table by its name."""

Grid = tuple[list[str], list[list[str]]]


def _grids(table: Table) -> list[Grid]:
    """The table itself, then the largest ratios and the deepest members where there are any."""
    grids = [_main(table), _largest(table), _deepest(table)]
    return [grid for n, grid in enumerate(grids) if n == 0 or grid[1]]


def _main(table: Table) -> Grid:
    """With a column for the job only where model and cluster do not tell rows apart."""
    told_apart = len({(record.model, record.cluster) for record in table.records}) == len(table.records)
    heads = ["model", "cluster", "job", "step time", "gap", "peak", "plan", *table.methods]
    rows = [_cells(record, table.methods) for record in table.records]
    return _without_job(heads, rows) if told_apart else (heads, rows)


def _without_job(heads: list[str], rows: list[list[str]]) -> Grid:
    job = heads.index("job")
    return heads[:job] + heads[job + 1 :], [row[:job] + row[job + 1 :] for row in rows]


def _cells(record: Record, methods: Sequence[str]) -> list[str]:
    names = [record.model, record.cluster, record.job]
    answer = record.answer
    if answer.value is None or answer.peak is None:
        what = "does not fit" if record.outcome == "infeasible" else record.error.splitlines()[0]
        return [*names, "-", "-", "-", what, *["-"] * len(methods)]
    gap = "-" if record.gap is None else f"{record.gap:.1%}"
    own = [format_time(answer.value), gap, format_bytes(answer.peak), answer.plan]
    return [*names, *own, *(_ratio(record, method) for method in methods)]


def _ratio(record: Record, method: str) -> str:
    ratio, peak = record.ratio(method), record.peak_ratio(method)
    if ratio is None or peak is None:
        return "?" if record.beside.get(method, Figures()).why == LATE else "-"
    return f"{ratio:.2f} ({peak:.2f})"


def _largest(table: Table) -> Grid:
    heads = ["method", "against", "largest ratio of", "is", "where"]
    rows = [
        [one.method, one.other, one.figure, f"{one.ratio:.2f}", _where(one.record, one.method, one.other)]
        for one in largest(table, _heroes(table))
    ]
    return heads, rows


def _where(record: Record, method: str, other: str) -> str:
    plans = [record.answer if name == ANSWER else record.beside.get(name, Figures()) for name in (method, other)]
    return f"{record.model} on {record.cluster}, {record.job}: {plans[0].plan} against {plans[1].plan}"


def _deepest(table: Table) -> Grid:
    methods = [ANSWER, *table.methods]
    rows: dict[tuple[str, str, str], dict[str, int]] = {}
    for one in deepest(table):
        rows.setdefault((one.series, one.cluster, one.job), {})[one.method] = one.number
    heads = ["largest that fits", "cluster", "job", *methods]
    return heads, [[*key, *(str(numbers[m] or "-") for m in methods)] for key, numbers in rows.items()]


def _heroes(table: Table) -> tuple[str, ...]:
    return tuple(hero for hero in HEROES if hero == ANSWER or hero in table.methods)


def _markdown(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _columns(heads: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(line[n]) for line in (heads, *rows)) for n in range(len(heads))]
    lines = [heads, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
