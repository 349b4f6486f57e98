"""The ``pipeplan`` program: find its commands, run one, turn errors into exit codes.

Exit codes: 0 for an answer, 1 if no plan fits, a run failed or an answer could not be printed, 2 for bad input.
Reasons go to standard error.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from typing import Any, NoReturn

from pipeplan.cli.base import OUTPUT, Command
from pipeplan.cli.streams import code_of, tolerant_streams
from pipeplan.core.collector import collect_seldom
from pipeplan.core.errors import InputError, PipeplanError
from pipeplan.core.plug_ins import entry_points
from pipeplan.core.version import __version__
from pipeplan.core.wording import hint

OWN = (
    *("solve", "explain", "compare", "judge", "frontier", "profile"),
    *("simulate", "report", "export", "shard", "sweep", "list", "show", "new", "schema", "doctor"),
)
"""Commands of this package."""
FIRST = ("solve", "explain", "run", "profile", "compare", "judge", "frontier", "machine")
"""Commands that the help lists first: those of a plan's first day."""
EXAMPLES = """\
$ pipeplan solve gpt2-small 8-v100-nvlink --batch 64 -o plan.json    the best plan, with its proof
$ pipeplan explain plan.json                                         what binds it
$ pipeplan solve --help                                              examples and options of a command

"""
COMPLETION = "--print-completion"
DESCRIPTION = "Plan distributed training: provably good partitions and schedules, explained, and run with torch."

EXTRAS = {"torch": "torch; install it with: pip install 'pipeplan[torch]'"}
"""Packages that only some commands need, each with the way to get it."""


class _Parser(argparse.ArgumentParser):
    """A parser whose help begins with examples, and that names the likely choice where another word was given."""

    examples = ""

    def format_help(self) -> str:
        """Return the examples, and what argparse has below them."""
        return self.examples + super().format_help()

    def begin(self, command: Command) -> None:
        """Put a command's example first, its required words into the usage, and ``--help`` among the last options."""
        self.examples = f"$ pipeplan {command.name} {command.example}\n\n" if command.example else ""
        needed = [_usage(action) for action in self._actions if action.required or not action.option_strings]
        self.usage = " ".join(["pipeplan", command.name, *needed, "[options]"])
        self._action_groups.sort(key=lambda each: each.title == OUTPUT)
        last = self._action_groups[-1] if self._action_groups[-1].title == OUTPUT else self
        last.add_argument("-h", "--help", action="help", help="print this, and exit")

    def error(self, message: str) -> NoReturn:
        """Print the message with the likely choice, and exit."""
        if found := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            message += hint(found[1], re.findall(r"[^', ]+", found[2]))
        super().error(message)


def _usage(action: argparse.Action) -> str:
    """Return an argument as a usage line has it: ``'[CLUSTER]'``, ``'--batch N'``."""
    word = str(action.metavar or action.dest)
    if action.option_strings:
        return f"{action.option_strings[-1]} {word}"
    return f"[{word}]" if action.nargs == "?" else word


class _Completion(argparse.Action):
    """Print the completions of a shell, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *values: Any) -> NoReturn:
        if find_spec("shtab") is None:
            parser.error(f"{COMPLETION} needs shtab; install it with: pip install 'pipeplan[completion]'")
        import shtab

        print(shtab.complete(parser, values[1]))
        parser.exit()


def commands() -> list[Command]:
    """Commands of this package and of other packages' entry points, those `FIRST` that most people need."""
    own: list[Command] = [import_module(f"pipeplan.cli.{name}").command for name in OWN]
    announced = sorted(entry_points(group="pipeplan.commands"), key=lambda point: point.name)
    known = {command.name: command for command in own}
    for point in announced:
        command = _loaded(point, known)
        known[command.name] = command
    return [known.pop(name) for name in FIRST if name in known] + list(known.values())


def _loaded(point: EntryPoint, known: Mapping[str, Command]) -> Command:
    """Return the command of an entry point; one that cannot be loaded says why when it is called."""
    try:
        command = point.load()
        if isinstance(command, Command) and command.name not in known:
            return command
        why = "it is no pipeplan.cli.base.Command, or has the name of another one"
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    why = f"the command {point.name!r} of {point.value.partition(':')[0]} cannot be loaded: {why}"
    name = f"{point.name}@{point.value}" if point.name in known else point.name
    return Command(name, why, lambda one: one.set_defaults(broken=why), lambda _: 2)


def parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The argument parser: every command with its summary, and the arguments of those that are among ``arguments``.

    To know the arguments of a command may need packages that take long to import.
    """
    top = _Parser(prog="pipeplan", description=DESCRIPTION)
    top.examples = EXAMPLES
    top.add_argument("--version", action="version", version=f"pipeplan {__version__}")
    top.add_argument(COMPLETION, action=_Completion, choices=("bash", "zsh", "tcsh"), help="for a shell, to source")
    sub = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in commands():
        one = sub.add_parser(command.name, help=command.summary, description=command.summary, add_help=False)
        if command.name not in arguments and COMPLETION not in arguments:
            continue
        command.configure(one)
        one.begin(command)
        defaults = {action.dest: one.get_default(action.dest) for action in one._actions}
        one.set_defaults(run=command.run, defaults=defaults)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    collect_seldom()
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
        if broken := getattr(options, "broken", ""):
            raise InputError(broken)
        _refuse(unknown, options)
        return int(options.run(options))
    except InputError as error:
        print(f"pipeplan: {error}", file=sys.stderr)
        return 2
    except PipeplanError as error:
        print("\n".join([f"pipeplan: {error}", *getattr(error, "__notes__", ())]), file=sys.stderr)
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
