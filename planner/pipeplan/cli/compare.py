"""``pipeplan compare``: all partitioners and the solver under every schedule family, in one table."""

import json
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from pipeplan.cli.base import OUTPUT, Command, add_json, add_report, group, try_outputs
from pipeplan.cli.questions import add_limits, add_questions, limits, question, searched

if TYPE_CHECKING:
    from pipeplan.analysis.compare import Comparison


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``compare``."""
    add_questions(parser)
    add_limits(parser)
    rows = group(parser, OUTPUT)
    rows.add_argument("--top", type=int, metavar="N", help="only the N fastest lines")
    rows.add_argument("--all", action="store_true", help="a line for every schedule family of every method")
    add_json(parser)
    add_report(parser)


def run(options: Namespace) -> int:
    """Solve under every family, and print the table."""
    from pipeplan.analysis.compare import compare
    from pipeplan.cli.progress import solving
    from pipeplan.core.figures import whole

    if options.top is not None:
        whole(options.top, "--top", 1)
    try_outputs(options, pages=("report",), inputs=("model", "cluster"))
    what, figure = searched(options)
    with solving(what, figure) as on_progress:

        def name_family(family: str) -> None:
            on_progress.what = f"{what}, {family}"

        comparison = compare(**question(options), **limits(options), on_progress=on_progress, on_family=name_family)
    if options.json:
        print(json.dumps(as_json(comparison, options.top), indent=2))
    else:
        show(comparison, options.top, every=options.all)
    if options.report:
        from pipeplan.report.page.pages import compare_page

        compare_page(comparison).save(options.report)
    return 0


def as_json(comparison: "Comparison", top: int | None = None) -> dict[str, object]:
    """Every row, or the ``top`` fastest, as plain data; times in seconds."""
    rows = [
        {
            "method": row.method,
            "schedule": row.family,
            "step_time_s": None if row.value is None else row.value / 1e9,
            "throughput": comparison.throughput(row).as_json(),
            "at_least_s": None if row.at_least is None else row.at_least / 1e9,
            "peak_bytes": list(row.peaks),
            "over_bound": row.excess,
            "plan": row.label,
            "why": row.why,
            "outside": row.outside,
        }
        for row in comparison.lines(top, every=True)
    ]
    return {
        "model": comparison.model,
        "cluster": comparison.cluster,
        "bound_s": comparison.bound / 1e9,
        "rows": rows,
        "costs": comparison.costs.as_json(),
        "searched": comparison.searched.as_json(),
    }


def show(comparison: "Comparison", top: int | None = None, *, every: bool = False) -> None:
    """Print the table as text: the best row of each method, or every row; only the ``top`` fastest of them."""
    from pipeplan.core.tabular import Table
    from pipeplan.core.units import format_bytes, format_time
    from pipeplan.core.wording import counted, fitted
    from pipeplan.search.result import beyond

    rows = comparison.lines(top, every=every)
    rates = [comparison.throughput(row).cells() for row in rows]
    units = [unit for unit in rates[0] if any(rate[unit] for rate in rates)]
    figure = comparison.best.job.objective.figure
    heads = ("method", "schedule", figure, "over bound", *units, "peak memory", "plan")
    cells = []
    for row, rate in zip(rows, rates, strict=True):
        label = row.label + beyond(row.outside)
        if row.excess is None:
            time, over, peaks, label = "-", "-", "", row.why
        elif row.value is None:
            time, over, peaks = f"at least {format_time(row.at_least or 0)}", f"≥ {row.excess:.2%}", "not simulated"
        else:
            time, over = format_time(row.value), f"{row.excess:.2%}"
            peaks = format_bytes(max(row.peaks))
        cells.append((row.method, row.family, time, over, *(rate[unit] for unit in units), peaks, label))
    print(comparison.headline, Table.of_text(heads, cells, (*reversed(units), "schedule")).printed(), sep="\n")
    left = len(comparison.rows) - len(rows)
    if left:
        print(f"{counted(left, 'more line')}, of other methods or schedules: --all prints every one")
    print(fitted("\n".join([*comparison.costs.lines(), *comparison.searched.lines()])))


command = Command(
    "compare",
    "every partitioner, every schedule family and the solver in one table",
    configure,
    run,
    "vgg-16 4-v100-nvlink --batch 64 --top 10",
)
