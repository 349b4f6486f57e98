"""``pipeplan export``: a plan, or a part of it, in the format of another tool."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pipeplan.cli.base import STDOUT, Command, try_outputs


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``export``."""
    from pipeplan.io.export import EXPORTS

    parser.add_argument("plan", metavar="PLAN", help="a file that solve -o wrote")
    listed = "; ".join(f"{name}: {export.summary}" for name, export in EXPORTS.items())
    parser.add_argument("--to", required=True, metavar="FORMAT", choices=tuple(EXPORTS), help=listed)
    parser.add_argument("-o", "--output", metavar="FILE", default="-", help="write it here; - prints it (the default)")


def run(options: Namespace) -> int:
    """Print or write the plan."""
    from pipeplan.core.plan import Plan
    from pipeplan.io.atomic import write_whole
    from pipeplan.io.export import exported

    try_outputs(options, files=("output",), inputs=("plan",))
    text = exported(Plan.load(options.plan), options.to)
    if options.output == STDOUT:
        print(text, end="")
    else:
        write_whole(Path(options.output), text)
        print(f"{options.to} of {options.plan} written to {options.output}")
    return 0


command = Command(
    "export",
    "a plan for another tool: torch's schedule file, a device map",
    configure,
    run,
    "plan.json --to torch-csv -o schedule.csv",
)
