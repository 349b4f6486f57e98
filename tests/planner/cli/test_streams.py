"""Standard output and standard error that are closed, full, or cannot take a character."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.quick import rarely
from pipeplan.cli.main import main
from pipeplan.core.plan import Plan

QUESTION = ["solve", "vgg-16", "4-v100-nvlink", "--batch", "8", "--time", "5"]
CLOSED = {"out": ">&-", "err": "2>&-", "both": ">&- 2>&-"}
FULL = {"out": ">/dev/full", "err": "2>/dev/full", "both": ">/dev/full 2>/dev/full"}


def run(words: list[str], redirection: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a shell with a redirection."""
    command = ["sh", "-c", f'"$@" {redirection}', "sh", sys.executable, "-m", "pipeplan.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


@pytest.mark.parametrize(
    "redirection", [CLOSED["out"], FULL["both"], *(rarely(text) for text in (FULL["out"], CLOSED["err"], FULL["err"]))]
)
def test_the_file_is_written_whatever_happens_to_the_streams(redirection: str, tmp_path: Path) -> None:
    """The plan is saved, and the exit code says that text was lost; so does standard error where it is open."""
    path = tmp_path / "plan.json"
    ran = run([*QUESTION, "-o", str(path)], redirection)
    assert ran.returncode == 1
    assert Plan.load(path).step_time > 0
    assert "Traceback" not in ran.stderr
    if "2>" not in redirection:
        assert "pipeplan: standard output was not written: " in ran.stderr


def test_what_a_stream_cannot_take_is_replaced(tmp_path: Path) -> None:
    """An ASCII stream gets question marks, and all the rest of the text."""
    path = tmp_path / "plan.json"
    ran = run([*QUESTION, "-o", str(path)], PYTHONIOENCODING="ascii")
    assert ran.returncode == 0, ran.stderr
    assert "step time" in ran.stdout
    assert ran.stdout.isascii()
    assert Plan.load(path).step_time > 0


@pytest.mark.parametrize(
    "words",
    [
        ["list", "models"],
        rarely(["--help"]),
        rarely(["show", "vgg-16"]),
        rarely(["schema", "plan"]),
        rarely(["compare", "vgg-16", "4-v100-nvlink", "--batch", "8", "--time", "5"]),
        rarely(["frontier", "vgg-16", "4-v100-nvlink", "--batch", "8", "--time", "5"]),
        rarely(["doctor"]),
    ],
    ids=lambda words: words[0],
)
def test_every_command_tells_by_its_exit_code(words: list[str]) -> None:
    """Nothing raises on closed, full and ASCII streams; lost text is exit code 1, replaced characters are none."""
    for redirection in (CLOSED["both"], FULL["out"]):
        ran = run(words, redirection)
        assert ran.returncode == 1, ran.stderr
        assert "Traceback" not in ran.stderr
    ran = run(words, PYTHONIOENCODING="ascii")
    assert ran.returncode == 0, ran.stderr


def test_a_closed_pipe_is_no_error() -> None:
    """A reader that wants no more of the output ends nothing."""
    ran = run(["list", "models"], "| true")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_an_answer_to_a_closed_standard_output_is_refused() -> None:
    """``-o -`` is refused before the search if standard output is closed."""
    ran = run([*QUESTION, "-o", "-"], CLOSED["out"])
    assert ran.returncode == 2
    assert "standard output, which is closed" in ran.stderr


def test_the_streams_of_the_caller_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    """After a command, ``sys.stdout`` and ``sys.stderr`` are what they were, also where the parser exits."""
    before = sys.stdout, sys.stderr
    assert main(["list", "models", "--json"]) == 0
    with pytest.raises(SystemExit) as left:
        main(["solve", "--no-such-option"])
    assert left.value.code == 2
    assert (sys.stdout, sys.stderr) == before
    assert json.loads(capsys.readouterr().out)
