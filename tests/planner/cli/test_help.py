"""``--help``: an example first, options in groups, the commands that most people need first."""

import shlex

import pytest

from pipeplan.cli.base import Command
from pipeplan.cli.main import FIRST, commands, parser

MOST = 16
"""Most options of one group."""


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_help_begins_with_an_example_that_parses(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """The first line is a command that the parser takes, options stand in groups, ``--help`` is the last."""
    words = [command.name, *shlex.split(command.example)]
    options = parser(words).parse_args(words)
    assert options.run is command.run
    with pytest.raises(SystemExit):
        parser([command.name]).parse_args([command.name, "--help"])
    text = capsys.readouterr().out
    assert text.startswith(f"$ pipeplan {' '.join(words)}\n\nusage: pipeplan {command.name} ")
    assert [line for line in text.splitlines() if line.startswith("  -")][-1].startswith("  -h, --help")
    for title, many in _groups(text).items():
        assert many <= MOST, f"{many} options under {title!r}"


def _groups(text: str) -> dict[str, int]:
    """Number of options below each title."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            title = line.rstrip(":")
            found[title] = 0
        elif line.startswith("  -"):
            found[title] += 1
    return found


def test_the_commands_of_the_first_day_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    """``pipeplan --help`` begins with examples and lists these commands in this order, above all others."""
    with pytest.raises(SystemExit):
        parser(["--help"]).parse_args(["--help"])
    text = capsys.readouterr().out
    assert text.startswith("$ pipeplan solve ")
    assert [command.name for command in commands()][: len(FIRST)] == list(FIRST)
    places = [text.index(f"\n    {name} ") for name in FIRST]
    assert places == sorted(places)
