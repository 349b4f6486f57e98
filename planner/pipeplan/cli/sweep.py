"""``pipeplan sweep``: solve the cells of an experiment, and print them in one table."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeplan.cli.base import OUTPUT, Command, add_report, group, show, try_outputs
from pipeplan.cli.questions import number

if TYPE_CHECKING:
    from pipeplan.analysis.sweep.cells import Cell
    from pipeplan.analysis.sweep.experiment import Experiment
    from pipeplan.analysis.sweep.record import Record

SWEEPS = Path("sweep-out")


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``sweep``."""
    parser.add_argument("experiment", metavar="EXPERIMENT", help="a YAML file, or a name in datasets/experiments")
    files = group(parser, OUTPUT)
    files.add_argument(
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
    parser.add_argument(
        "--shard", metavar="I/N", help="solve part I of N only, as a job of an array; into one folder or several"
    )
    parser.add_argument(
        "--merge",
        nargs="*",
        type=Path,
        metavar="FOLDER",
        help="solve nothing: join what shards left in the output folder and in these, in one table",
    )
    files.add_argument("--parquet", action="store_true", help="write table.parquet too (extra 'parquet': pyarrow)")
    add_report(parser)
    files.add_argument("--format", default="text", choices=("text", "markdown", "csv", "json", "jsonl"))
    files.add_argument("--json", dest="format", action="store_const", const="json", help="short for --format json")


def run(options: Namespace) -> int:
    """Check and solve all cells, show progress, print and write the table; return 1 if a cell failed or is missing."""
    from pipeplan.analysis.sweep.cells import left_out
    from pipeplan.analysis.sweep.formats import FORMATS, require_parquet, write_tables
    from pipeplan.analysis.sweep.run import Shard, sweep
    from pipeplan.analysis.sweep.table import table, varied
    from pipeplan.core.errors import InputError

    beside = [name for name in ("retry", "shard") if getattr(options, name)]
    if options.merge is not None and beside:
        raise InputError(f"--merge solves nothing, and --{beside[0]} says what to solve; leave out one of the two")
    try_outputs(options, pages=("report",), folders=("output",))
    if options.parquet:
        require_parquet()
    shard = Shard.parse(options.shard) if options.shard else Shard(1, 1)
    experiment, data = _read(options)
    for source in left_out(experiment, data):
        print(f"sweep  left out, as its file is not there: {source}", file=sys.stderr)
    folder = options.output or SWEEPS / experiment.name
    columns = varied(experiment.searches)
    done: list[Record] = []

    def tell(cell: "Cell", record: "Record", kept: bool) -> None:
        done.append(record)
        name = ", ".join([cell.label, *_searched(record, columns)])
        note = " (kept)" if kept and record.outcome != "missing" else ""
        print(f"sweep  {len(done):3d}  {name}: {_outcome(record)}{note}", file=sys.stderr)

    try:
        records = sweep(
            experiment,
            folder,
            data=data,
            workers=options.workers,
            retry=options.retry,
            shard=shard,
            merged=None if options.merge is None else tuple(options.merge),
            checked=True,
            on_progress=tell,
        )
    except KeyboardInterrupt:
        print(f"sweep  interrupted after {len(done)} cells; the same command goes on", file=sys.stderr)
        show(FORMATS[options.format](table(done, experiment.beside)), options, end="")
        return 130
    whole = table(records, experiment.beside)
    show(FORMATS[options.format](whole), options, end="")
    name = "table" if options.shard is None else f"table-{shard.number}-of-{shard.count}"
    write_tables(whole, folder, name, parquet=options.parquet)
    if options.report:
        from pipeplan.report.page.pages import sweep_page

        sweep_page(experiment.name, whole).save(options.report)
    return _verdict(records)


def _read(options: Namespace) -> "tuple[Experiment, tuple[Path, ...]]":
    """The experiment, with all of its cells checked, and the folders of its files."""
    from pipeplan.analysis.sweep.experiment_file import find_experiment, read_experiment
    from pipeplan.analysis.sweep.faults import faults

    path = find_experiment(options.experiment)
    data = (*options.data, path.resolve().parent)
    experiment = read_experiment(path, lambda read: faults(read, data))
    return experiment.limited(options.time, options.gap), data


def _searched(record: "Record", columns: Sequence[str]) -> list[str]:
    """What distinguishes the search of a record from the others: ``['backend cbc', 'seed 1']``."""
    from pipeplan.analysis.sweep.table import asked_of_search

    search = asked_of_search(record.search)
    return [f"{name} {search[name]}" for name in columns]


def _verdict(records: "Sequence[Record]") -> int:
    """Say how many cells have no answer; return the exit code."""
    failed, missing = (sum(record.outcome == outcome for record in records) for outcome in ("failed", "missing"))
    if failed:
        print(f"sweep  {failed} of {len(records)} cells failed; --retry solves them again", file=sys.stderr)
    if missing:
        print(f"sweep  {missing} of {len(records)} cells are missing", file=sys.stderr)
    return 1 if failed or missing else 0


def _outcome(record: "Record") -> str:
    from pipeplan.core.units import format_time

    if record.answer.value is None:
        return f"{record.outcome}: {record.reason}"
    gap = "" if record.gap is None else f", gap {record.gap:.2%}"
    return f"{format_time(record.answer.value)}{gap}, {record.wall or 0:.0f} s"


command = Command(
    "sweep",
    "every model on every cluster for every job of an experiment, in one table",
    configure,
    run,
    "headline -o sweep-out --workers 2",
)
