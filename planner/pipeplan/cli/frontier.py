"""``pipeplan frontier``: step time against memory, number of devices or price."""

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeplan.cli.base import OUTPUT, STDOUT, Command, add_json, add_report, group, show, try_outputs
from pipeplan.cli.questions import add_limits, add_questions, limits, number, question

if TYPE_CHECKING:
    from pipeplan.analysis.frontier.answers import Answer


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``frontier``."""
    add_questions(parser)
    add_limits(parser)
    points = group(parser, "points")
    points.add_argument(
        "--over", default="memory", metavar="{memory,devices,price}", help="what the step time stands against (memory)"
    )
    points.add_argument("--points", type=number, metavar="N", help="look at N limits only, where most is open")
    points.add_argument("--fewest", action="store_true", help="only the fewest devices that fit, with the proof")
    files = group(parser, OUTPUT)
    files.add_argument("-o", "--output", metavar="FILE", help="keep the answers here as they come; go on from there")
    files.add_argument("--csv", metavar="FILE", help="write the points as a table; - prints it")
    files.add_argument("--plot", metavar="FILE", help="draw it (.svg or .png)")
    add_report(parser)
    add_json(parser)


def run(options: Namespace) -> int:
    """Compute the points; print, then write and draw."""
    from pipeplan.analysis.frontier import fewest_devices, frontier
    from pipeplan.core.errors import InputError
    from pipeplan.io.atomic import write_whole

    if options.fewest and (
        options.csv or options.plot or options.report or options.points is not None or options.over == "price"
    ):
        raise InputError(
            "--fewest answers with one plan on the fewest devices; --points, --csv, --plot, --report and --over price "
            "belong to a whole frontier"
        )
    try_outputs(options, files=("output", "csv"), pictures=("plot",), pages=("report",), inputs=("model", "cluster"))
    if options.output == STDOUT:
        raise InputError("--output keeps answers, which are read again; name a file, or print a table with --csv -")
    how = question(options) | limits(options) | {"path": options.output, "on_progress": _tell}
    if options.fewest:
        fewest = fewest_devices(**how)
        show(json.dumps(fewest.as_json(), indent=2) if options.json else fewest, options)
        return 0
    found = frontier(over=options.over, points=options.points, **how)
    show(json.dumps(found.as_json(), indent=2) if options.json else found, options, "csv")
    if options.csv:
        write_whole(Path(options.csv), found.as_csv())
    if options.plot:
        from pipeplan.report.plot.frontier import save_frontier

        save_frontier(options.plot, found)
    if options.report:
        from pipeplan.report.page.pages import frontier_page

        frontier_page(found).save(options.report)
    return 0


def _tell(asked: str, answer: "Answer") -> None:
    """Print what was asked, and the answer."""
    from pipeplan.core.units import format_time

    found = answer.verdict.value
    if answer.plan is not None:
        found = f"plan {format_time(answer.value)}   bound {format_time(answer.bound)}"
    print(f"asked for {asked}: {found}", file=sys.stderr)


command = Command(
    "frontier",
    "step time against memory, devices or price; the fewest devices that fit",
    configure,
    run,
    "gnmt-8 4-v100-nvlink --batch 64 --plot frontier.svg",
)
