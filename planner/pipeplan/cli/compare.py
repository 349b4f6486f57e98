"""``pipeplan compare``: all partitioners and the solver under every schedule family, in one table."""

import json
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pipeplan.cli.base import Command
from pipeplan.cli.questions import add_limits, add_questions, limits, read_cluster, read_job, read_model

if TYPE_CHECKING:
    from pipeplan.analysis.compare import Comparison


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``compare``."""
    add_questions(parser)
    add_limits(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(options: Namespace) -> int:
    """Solve under every family, and print the table."""
    from pipeplan.analysis.compare import compare
    from pipeplan.cli.progress import solving

    model = read_model(options)
    cluster = read_cluster(options, model)
    with solving(quiet=options.json) as on_progress:
        comparison = compare(
            model,
            cluster,
            read_job(options, model),
            **limits(options),
            on_progress=on_progress,
        )
    if options.json:
        print(json.dumps(as_json(comparison), indent=2))
    else:
        show(comparison)
    return 0


def as_json(comparison: "Comparison") -> dict[str, object]:
    """The table as plain data; times in seconds."""
    rows = [
        {
            "method": row.method,
            "schedule": row.family,
            "step_time_s": None if row.value is None else row.value / 1e9,
            "at_least_s": None if row.at_least is None else row.at_least / 1e9,
            "peak_bytes": list(row.peaks),
            "over_bound": row.excess,
            "plan": row.label,
            "why": row.why,
            "outside": row.outside,
        }
        for row in comparison.rows
    ]
    return {
        "model": comparison.model,
        "cluster": comparison.cluster,
        "bound_s": comparison.bound / 1e9,
        "rows": rows,
        "costs": comparison.costs.as_json(),
        "searched": comparison.searched.as_json(),
    }


def show(comparison: "Comparison") -> None:
    """Print the table as text."""
    from rich.console import Console
    from rich.table import Table

    from pipeplan.analysis.compare import SOLVER
    from pipeplan.core.units import format_bytes, format_time
    from pipeplan.search.result import beyond

    table = Table(title=comparison.headline, title_justify="left", box=None, pad_edge=False)
    for heading, justify in (
        ("method", "left"),
        ("schedule", "left"),
        (comparison.best.job.objective.figure, "right"),
        ("over bound", "right"),
        ("peak memory per device", "left"),
        ("plan", "left"),
    ):
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in comparison.rows:
        label = row.label + beyond(row.outside)
        if row.excess is None:
            cells = (row.method, row.family, "-", "-", "", row.why)
        elif row.value is None:
            least = format_time(row.at_least or 0)
            cells = (row.method, row.family, f"at least {least}", f"≥ {row.excess:.2%}", "not simulated", label)
        else:
            peaks = _few([format_bytes(peak) for peak in row.peaks])
            cells = (
                row.method,
                row.family,
                format_time(row.value),
                f"{row.excess:.2%}",
                peaks,
                label,
            )
        table.add_row(*cells, style="bold" if row.method == SOLVER else None)
    Console(width=None if Console().is_terminal else 140).print(table)
    print(f"costs: {comparison.costs.in_words()}", *comparison.searched.lines(), sep="\n")


def _few(items: list[str], most: int = 4) -> str:
    return ", ".join(items) if len(items) <= most else f"{', '.join(items[:most])} … ({len(items)} devices)"


command = Command("compare", "every partitioner, every schedule family and the solver in one table", configure, run)
