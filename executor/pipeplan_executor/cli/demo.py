"""``pipeplan demo``: why a plan is worth finding, shown by a real model on this machine."""

from argparse import ArgumentParser, Namespace

from pipeplan.cli.base import Command, try_outputs


def configure(parser: ArgumentParser) -> None:
    """Add the arguments of ``demo``."""
    parser.add_argument("--output", default="demo-out", metavar="FOLDER", help="where files and pictures go (demo-out)")
    parser.add_argument("--model", default="decoder", help="a name in pipeplan_executor.zoo (decoder)")
    parser.add_argument("--batch", type=int, default=16, metavar="N", help="samples in one step (16)")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="steps that are timed (5)")


def run(options: Namespace) -> int:
    """Run the demonstration."""
    from pathlib import Path

    from pipeplan.report.page.chart import require_plotly
    from pipeplan.report.plot.library import require_matplotlib
    from pipeplan_executor.cli.demo_run import PAGE, demonstrate

    try_outputs(options, folders=("output",))
    require_matplotlib()
    require_plotly(Path(PAGE))
    demonstrate(Path(options.output), options.model, options.batch, options.steps)
    return 0


command = Command(
    "demo",
    "why: a real model with memory to spare and with too little, proved and run",
    configure,
    run,
    "--model decoder --batch 16",
)
