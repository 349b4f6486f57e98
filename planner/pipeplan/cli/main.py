"""The ``pipeplan`` program: find its commands, run one, turn errors into exit codes.

Exit codes: 0 for an answer, 1 if no plan fits or a run failed, 2 for bad input. Reasons go to standard error.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points

from pipeplan.cli.base import Command
from pipeplan.core.errors import InputError, PipeplanError
from pipeplan.core.version import __version__
from pipeplan.core.wording import hint

OWN = ("profile", "solve", "compare", "simulate", "sweep", "explain", "frontier", "shard", "doctor")
DESCRIPTION = "Plan distributed training: provably good partitions and schedules, explained, and run with torch."


def commands() -> list[Command]:
    """Commands of this package, then those of other packages' entry points."""
    own: list[Command] = [import_module(f"pipeplan.cli.{name}").command for name in OWN]
    announced = sorted(entry_points(group="pipeplan.commands"), key=lambda point: point.name)
    return own + [point.load() for point in announced]


def parser() -> argparse.ArgumentParser:
    """The argument parser with every command."""
    top = argparse.ArgumentParser(prog="pipeplan", description=DESCRIPTION)
    top.add_argument("--version", action="version", version=f"pipeplan {__version__}")
    sub = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in commands():
        one = sub.add_parser(command.name, help=command.summary, description=command.summary)
        command.configure(one)
        defaults = {action.dest: one.get_default(action.dest) for action in one._actions}
        one.set_defaults(run=command.run, defaults=defaults)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options, unknown = parser().parse_known_args(arguments)
    try:
        _refuse(unknown, options)
        return int(options.run(options))
    except InputError as error:
        print(f"pipeplan: {error}", file=sys.stderr)
        return 2
    except PipeplanError as error:
        print(f"pipeplan: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("pipeplan: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


def _refuse(unknown: Sequence[str], options: argparse.Namespace) -> None:
    """Refuse words that a command does not know, with those like the first of them."""
    if unknown:
        known = [name.replace("_", "-") for name in options.defaults]
        first = unknown[0].partition("=")[0]
        name = first.lstrip("-")
        what = f"no place for {name!r}" if name == first else f"no option {name!r}{hint(name, known)}"
        raise InputError(f"{options.command} has {what}; `pipeplan {options.command} --help` lists what it takes")


if __name__ == "__main__":
    sys.exit(main())
