"""Output paths of commands: checked before the work, printed before saving, and ``-`` is standard output."""

import json
import os
import stat
from argparse import ArgumentParser
from pathlib import Path

import pytest

from helpers.instances import fat_head
from pipeplan.cli import main as cli
from pipeplan.cli.main import main
from pipeplan.core.plan import Plan
from pipeplan.io import atomic
from pipeplan.io.model_file import write_model

WRITES = {"output", "plot", "report", "trace", "csv", "save_cluster", "save_plan", "checkpoint"}
"""Every option of any command that names an output path."""


@pytest.fixture
def question(tmp_path: Path) -> list[str]:
    """Arguments: a model file and its job."""
    write_model(fat_head(), tmp_path / "model.yaml")
    return [str(tmp_path / "model.yaml"), "--devices", "2", "--batch", "16", "--time", "10"]


@pytest.fixture
def plan(tmp_path: Path, question: list[str]) -> str:
    """A plan as a file."""
    assert main(["solve", *question, "-o", str(tmp_path / "plan.json"), "--json"]) == 0
    return str(tmp_path / "plan.json")


COMMANDS = {
    "solve": ["model", "--devices", "2", "--batch", "4"],
    "judge": ["model", "--devices", "2", "--batch", "4", "--stages", "9", "--micro-batches", "2"],
    "compare": ["model", "--devices", "2", "--batch", "4"],
    "simulate": ["plan"],
    "report": ["plan"],
    "export": ["plan", "--to", "stages"],
    "frontier": ["model", "--devices", "2", "--batch", "4"],
    "shard": ["model", "cluster", "--batch", "4"],
    "sweep": ["headline"],
    "profile": ["module:function", "--batch", "1"],
    "machine": [],
    "demo": [],
    "run": ["plan", "module:function"],
    "calibrate": ["plan", "module:function", "model", "--devices", "2"],
}
"""Arguments of every command that writes; no work can begin, as none of their files exists."""
FOLDERS = {("sweep", "output"), ("demo", "output"), ("run", "checkpoint")}


def _writing() -> list[tuple[str, str]]:
    """Every command and option that names an output path."""
    found = []
    for command in cli.commands():
        parser = ArgumentParser()
        command.configure(parser)
        found += [(command.name, action.dest) for action in parser._actions if action.dest in WRITES]
    return found


def test_every_command_that_writes_is_known() -> None:
    """The table of this test has every command that writes."""
    assert {name for name, _ in _writing()} == set(COMMANDS)


@pytest.mark.parametrize(("name", "option"), _writing())
def test_a_path_is_tried_before_the_work(
    name: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing folder, or a path of the wrong kind, is reported before anything is read or done."""
    (tmp_path / "file").write_text("")
    page = option == "report" or (name, option) == ("report", "output")
    if page:
        pytest.importorskip("plotly")
    suffix = ".svg" if option == "plot" else ".html" if page else ""
    (tmp_path / f"folder{suffix}").mkdir()
    flag = "--" + option.replace("_", "-")
    folder = (name, option) in FOLDERS
    wrong = [tmp_path / "file"] if folder else [tmp_path / f"no/where{suffix}", tmp_path / f"folder{suffix}"]
    needed = ["-o", str(tmp_path / "out")] if name in ("profile", "machine") and option != "output" else []
    for path in wrong:
        assert main([name, *COMMANDS[name], *needed, flag, str(path)]) == 2
        said = capsys.readouterr()
        assert flag in said.err
        assert "cannot write" in said.err
        assert str(path) in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", f"folder{suffix}"]


def test_a_picture_of_another_kind_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown picture suffix is reported before the search."""
    assert main(["solve", "no-model", "--devices", "2", "--batch", "4", "--plot", "plan.jpg"]) == 2
    assert ".svg or .png" in capsys.readouterr().err
    assert main(["solve", "no-model", "--devices", "2", "--batch", "4", "--report", "page.pdf"]) == 2
    assert "must end in .html" in capsys.readouterr().err


def test_the_answer_is_printed_before_it_is_saved(
    question: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fills up while the plan is saved costs the file, not the answer."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full)
    assert main(["solve", *question, "-o", str(tmp_path / "plan.json"), "--json"]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["status"] == "optimal"
    assert "No space left" in said.err


def test_a_dash_prints_the_plan(
    question: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``-o -`` prints the plan alone on standard output and the answer on standard error; no file is made."""
    monkeypatch.chdir(tmp_path)
    assert main(["solve", *question, "-o", "-"]) == 0
    said = capfd.readouterr()
    (tmp_path / "printed.json").write_text(said.out)
    assert Plan.load(tmp_path / "printed.json").batch == 16
    assert "stage 0" in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.yaml", "printed.json"]


@pytest.mark.parametrize(
    ("more", "both"),
    [
        (["-o", "-", "--json"], ("--output", "--json")),
        (["--plot", "-"], ("--plot", ".svg")),
        (["-o", "same.svg", "--plot", "same.svg"], ("--output", "--plot")),
        (["-o", ""], ("--output", "no path")),
        (["-o", "MODEL"], ("--output", "overwrite the model")),
    ],
)
def test_outputs_that_contradict_are_refused(
    question: list[str], more: list[str], both: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Two outputs for one path, a picture without a suffix, and an empty path are refused, naming the options."""
    assert main(["solve", *question, *[question[0] if word == "MODEL" else word for word in more]]) == 2
    said = capsys.readouterr()
    assert all(word in said.err for word in both)
    assert said.out == ""


def test_a_device_is_never_replaced(question: list[str], plan: str, tmp_path: Path) -> None:
    """Every command that writes one file writes into a named device, directly or by a link."""
    node, link = tmp_path / "null.svg", tmp_path / "link.svg"
    try:
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        node.write_bytes(b"")
    except PermissionError:
        pytest.skip("making a device node takes root")
    link.symlink_to(node)
    for path in (str(node), str(link)):
        assert main(["solve", *question, "--json", "-o", path, "--plot", path]) == 0
        assert main(["simulate", plan, "--json", "--trace", path, "--plot", path]) == 0
        assert main(["frontier", *question, "--json", "--points", "1", "-o", path, "--csv", path, "--plot", path]) == 0
    assert stat.S_ISCHR(node.stat().st_mode)
    assert link.is_symlink()


def test_a_frontier_that_is_none_is_refused(question: list[str], tmp_path: Path) -> None:
    """A file of answers with any other content is refused, and stays unchanged."""
    path = tmp_path / "answers.json"
    row = '{"verdict": "plan", "value": "x", "bound": 0, "why": "", "plan": {}}'
    for text in ("", "[]", "[" * 10**5, '{"format": 1}', '{"format":"f","question":"q","answers":{"a":' + row + "}}"):
        path.write_text(text)
        assert main(["frontier", *question, "--json", "-o", str(path)]) == 2
        assert path.read_text() == text
