"""The program without packages that only some commands need: it starts at once, and says what to install."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.quick import rarely
from pipeplan.cli.main import main

WITHOUT = """
import sys
sys.modules[{package!r}] = None  # as if it were not installed
from pipeplan.cli.main import main
sys.exit(main({arguments!r}))
"""
TORCH = "torch; install it with: pip install 'pipeplan[torch]'"
WORKLOAD = "pipeplan_executor.zoo:decoder"


def _without(package: str, arguments: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    code = WITHOUT.format(package=package, arguments=arguments)
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["machine", "-o", "here.yaml"], f"pipeplan: machine needs {TORCH}"),
        rarely(["demo"], f"pipeplan: demo needs {TORCH}"),
        (["run", "plan.json", WORKLOAD], f"pipeplan: run needs {TORCH}"),
        rarely(["calibrate", "plan.json", WORKLOAD, "model.yaml", "here.yaml"], f"pipeplan: calibrate needs {TORCH}"),
        (["profile", WORKLOAD, "--batch", "1", "-o", "model.yaml"], f"pipeplan: profiles need {TORCH}"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_without_torch_commands_name_the_extra(arguments: list[str], says: str, tmp_path: Path) -> None:
    """Each command that needs torch ends with one line on standard error, exit code 2, and no file."""
    done = _without("torch", arguments, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{says}\n")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_pictures_are_refused_before_the_search(tmp_path: Path) -> None:
    """``--plot`` is refused before any work, and the line names the extra."""
    arguments = ["solve", "vgg-16", "4-v100-nvlink", "--batch", "32", "--plot", "plan.svg"]
    done = _without("matplotlib", arguments, tmp_path)
    says = "pipeplan: --plot: pictures need matplotlib; install it with: pip install 'pipeplan[plot]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", says)


def test_without_plotly_pages_are_refused_before_the_search(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--report`` is refused before anything is read, and the line names the extra."""
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert main(["solve", "no-model", "no-cluster", "--batch", "32", "--report", "plan.html"]) == 2
    says = "pipeplan: --report: pages need plotly; install it with: pip install 'pipeplan[report]'\n"
    assert capsys.readouterr() == ("", says)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_imports_only_what_it_prints(option: str, tmp_path: Path) -> None:
    """Help and version come without numpy, pydantic or YAML, and so in a fraction of a second."""
    command = [sys.executable, "-X", "importtime", "-m", "pipeplan.cli", option]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"numpy", "pydantic", "yaml", "rich", "torch", "ortools"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["slove", "vgg-16"], "did you mean 'solve'"),
        (["list", "model"], "did you mean 'models'"),
    ],
)
def test_mistyped_words_have_a_likely_one(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands and choices of options are suggested."""
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert says in capsys.readouterr().err


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A newcomer who types the name of the program sees its commands."""
    with pytest.raises(SystemExit, match="0"):
        main([])
    assert "find the best plan" in capsys.readouterr().out


def test_completions_need_shtab_and_know_all_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without shtab the line names the extra; with it, the parser that it gets has the options of all commands."""
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit, match="2"):
        main(["--print-completion", "bash"])
    assert "pip install 'pipeplan[completion]'" in capsys.readouterr().err
    stub = SimpleNamespace(
        complete=lambda parser, shell: f"{shell}: {parser._actions[-1].choices['solve'].format_help()}"
    )
    monkeypatch.setitem(sys.modules, "shtab", stub)
    monkeypatch.setattr("pipeplan.cli.main.find_spec", lambda _: object())
    with pytest.raises(SystemExit, match="0"):
        main(["--print-completion", "bash"])
    printed = capsys.readouterr().out
    assert printed.startswith("bash: ") and "--micro-batches" in printed
