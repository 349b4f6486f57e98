"""``pipeplan sweep``: solve the cells of an experiment, and print them in one table."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeplan.cli.base import Command, show, try_outputs
from pipeplan.cli.questions import number

if TYPE_CHECKING:
    from pipeplan.analysis.sweep.cells import Cell
    from pipeplan.analysis.sweep.record import Record

OUTPUT = Path("sweep-out")


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``sweep``."""
    parser.add_argument("experiment", metavar="EXPERIMENT", help="a YAML file, or a name in datasets/experiments")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="finished cells and tables (sweep-out/NAME); go on from there",
    )
    parser.add_argument(
        "--data", type=Path, action="append", default=[], metavar="FOLDER", help="where files of models lie"
    )
    parser.add_argument("--workers", type=number, default=1, metavar="N", help="cells at a time (1)")
    parser.add_argument("--time", type=number, metavar="SECONDS", help="search of a cell, instead of the file's")
    parser.add_argument("--gap", type=number, help="at which a cell stops, instead of the file's")
    parser.add_argument("--retry", action="store_true", help="ask again what failed in an earlier run")
    parser.add_argument("--format", default="text", choices=("text", "markdown", "csv", "json"))
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="short for --format json")


def run(options: Namespace) -> int:
    """Solve all cells, show progress, print and write the table."""
    from pipeplan.analysis.sweep.cells import left_out
    from pipeplan.analysis.sweep.experiment_file import find_experiment, read_experiment
    from pipeplan.analysis.sweep.run import sweep
    from pipeplan.analysis.sweep.table import FORMATS, table
    from pipeplan.io.atomic import write_whole

    try_outputs(options, folders=("output",))
    path = find_experiment(options.experiment)
    experiment = read_experiment(path)
    data = (*options.data, path.resolve().parent)
    for source in left_out(experiment, data):
        print(f"sweep  left out, as its file is not there: {source}", file=sys.stderr)
    folder = options.output or OUTPUT / experiment.name
    done: list[Record] = []

    def tell(cell: "Cell", record: "Record", kept: bool) -> None:
        done.append(record)
        print(f"sweep  {len(done):3d}  {cell.label}: {_outcome(record)}{' (kept)' if kept else ''}", file=sys.stderr)

    try:
        records = sweep(
            experiment,
            folder / "cells",
            data=data,
            time_limit=options.time,
            gap=options.gap,
            workers=options.workers,
            retry=options.retry,
            on_progress=tell,
        )
    except KeyboardInterrupt:
        print(f"sweep  interrupted after {len(done)} cells; the same command goes on", file=sys.stderr)
        print(FORMATS[options.format](table(done, experiment.beside)), end="")
        return 130
    whole = table(records, experiment.beside)
    show(FORMATS[options.format](whole), options, end="")
    for name, suffix in (("text", "txt"), ("markdown", "md"), ("csv", "csv"), ("json", "json")):
        write_whole(folder / f"table.{suffix}", FORMATS[name](whole))
    return 0


def _outcome(record: "Record") -> str:
    from pipeplan.core.units import format_time

    if record.answer.value is None:
        return f"{record.outcome}: {record.reason}"
    gap = "" if record.gap is None else f", gap {record.gap:.2%}"
    return f"{format_time(record.answer.value)}{gap}, {record.wall:.0f} s"


command = Command("sweep", "every model on every cluster for every job of an experiment, in one table", configure, run)
