"""``pipeplan demo``: profile, solve, compare and run real models on this machine."""

from argparse import ArgumentParser, Namespace

from pipeplan.cli.base import Command, try_outputs


def configure(parser: ArgumentParser) -> None:
    """Add the arguments of ``demo``."""
    parser.add_argument("--output", default="demo-out", metavar="FOLDER", help="where files and pictures go (demo-out)")
    parser.add_argument("--models", default="decoder,vgg16", help="names in pipeplan_executor.zoo (decoder,vgg16)")
    parser.add_argument("--batch", type=int, default=16, metavar="N", help="samples in one step (16)")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="steps that are timed (5)")


def run(options: Namespace) -> int:
    """Run the demonstration."""
    from pathlib import Path

    from pipeplan_executor.cli.demo_run import demonstrate

    try_outputs(options, folders=("output",))
    demonstrate(Path(options.output), tuple(options.models.split(",")), options.batch, options.steps)
    return 0


command = Command("demo", "profile, solve, compare and run two real models on two processes", configure, run)
