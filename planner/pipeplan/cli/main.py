"""The ``pipeplan`` program: find its commands, run one, turn errors into exit codes.

Exit codes: 0 for an answer, 1 if no plan fits, a run failed or an answer could not be printed, 2 for bad input.
Reasons go to standard error.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, NoReturn

from pipeplan.cli.base import Command
from pipeplan.cli.streams import code_of, tolerant_streams
from pipeplan.core.errors import InputError, PipeplanError
from pipeplan.core.version import __version__
from pipeplan.core.wording import hint

OWN = (
    "list",
    "show",
    "new",
    "schema",
    "profile",
    "solve",
    "judge",
    "compare",
    "simulate",
    "export",
    "sweep",
    "explain",
    "frontier",
    "shard",
    "doctor",
)
COMPLETION = "--print-completion"
DESCRIPTION = "Plan distributed training: provably good partitions and schedules, explained, and run with torch."

EXTRAS = {"torch": "torch; install it with: pip install 'pipeplan[torch]'"}
"""Packages that only some commands need, each with the way to get it."""


class _Parser(argparse.ArgumentParser):
    """A parser that names the likely choice where another word was given."""

    def error(self, message: str) -> NoReturn:
        """Print the message with the likely choice, and exit."""
        if found := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            message += hint(found[1], re.findall(r"[^', ]+", found[2]))
        super().error(message)


class _Completion(argparse.Action):
    """Print the completions of a shell, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *values: Any) -> NoReturn:
        if find_spec("shtab") is None:
            parser.error(f"{COMPLETION} needs shtab; install it with: pip install 'pipeplan[completion]'")
        import shtab

        print(shtab.complete(parser, values[1]))
        parser.exit()


def commands() -> list[Command]:
    """Commands of this package, then those of other packages' entry points."""
    own: list[Command] = [import_module(f"pipeplan.cli.{name}").command for name in OWN]
    announced = sorted(entry_points(group="pipeplan.commands"), key=lambda point: point.name)
    return own + [point.load() for point in announced]


def parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The argument parser: every command with its summary, and the arguments of those that are among ``arguments``.

    To know the arguments of a command may need packages that take long to import.
    """
    top = _Parser(prog="pipeplan", description=DESCRIPTION)
    top.add_argument("--version", action="version", version=f"pipeplan {__version__}")
    top.add_argument(COMPLETION, action=_Completion, choices=("bash", "zsh", "tcsh"), help="for a shell, to source")
    sub = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in commands():
        one = sub.add_parser(command.name, help=command.summary, description=command.summary)
        if command.name not in arguments and COMPLETION not in arguments:
            continue
        command.configure(one)
        defaults = {action.dest: one.get_default(action.dest) for action in one._actions}
        one.set_defaults(run=command.run, defaults=defaults)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    with tolerant_streams() as streams:
        try:
            return code_of(_run(arguments), *streams)
        except SystemExit as left:  # --help, or words that the parser refuses
            if isinstance(left.code, int | None):
                left.code = code_of(left.code or 0, *streams)
            raise


def _run(arguments: Sequence[str] | None) -> int:
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    options, unknown = parser(arguments).parse_known_args(arguments)
    try:
        _refuse(unknown, options)
        return int(options.run(options))
    except InputError as error:
        print(f"pipeplan: {error}", file=sys.stderr)
        return 2
    except PipeplanError as error:
        print(f"pipeplan: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in EXTRAS:
            raise
        print(f"pipeplan: {options.command} needs {EXTRAS[package]}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pipeplan: interrupted", file=sys.stderr)
        return 130


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
