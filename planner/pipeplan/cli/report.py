"""``pipeplan report``: saved plans as a page of HTML."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pipeplan.cli.base import Command, try_outputs


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``report``."""
    parser.add_argument(
        "plan", nargs="+", metavar="PLAN", help="a file that solve -o wrote; several stand side by side"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="the page (PLAN.html, beside the first plan)")
    parser.epilog = (
        "solve, judge, compare, frontier, sweep and run take --report FILE: their pages also say what a plan's file "
        "does not hold, like the other methods, and what was searched."
    )


def run(options: Namespace) -> int:
    """Simulate the plans, and write the page."""
    from pipeplan.core.errors import InputError
    from pipeplan.core.plan import Plan
    from pipeplan.report.page.pages import plans_page
    from pipeplan.simulate import timeline_of

    options.output = options.output or str(Path(options.plan[0]).with_suffix(".html"))
    try_outputs(options, pages=("output",))
    doubled = {name for name in options.plan if options.plan.count(name) > 1}
    if doubled:
        raise InputError(f"{min(doubled)} is named twice; name each plan once")
    plans = {name: Plan.load(name) for name in options.plan}
    page = plans_page({name: (plan, timeline_of(plan)) for name, plan in plans.items()})
    page.save(options.output)
    print(f"wrote {options.output}")
    return 0


command = Command("report", "saved plans as one page of HTML, to open, print or send", configure, run, "plan.json")
