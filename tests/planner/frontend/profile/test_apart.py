"""Profiles in a separate process with a worker's allocator settings."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.torch_chains import fatal_workload, perceptron, perceptron_workload
from pipeplan.cli.main import main
from pipeplan.core.errors import InputError, PipeplanError
from pipeplan.frontend.profile import profile_workload
from pipeplan.frontend.profile.allocator import (
    VARIABLE,
    allocator_here,
    allocator_settings,
    inherited,
    return_free_memory,
)
from pipeplan.io.model_file import read_model

TESTS = Path(__file__).parents[3]
WORKERS = pytest.mark.skipif(
    not allocator_settings() or VARIABLE in os.environ, reason="no settings here that a worker gets and we do not"
)


@pytest.mark.slow
@WORKERS
def test_it_is_measured_under_a_workers_allocator() -> None:
    """The measuring process starts with a worker's settings, which this process neither has nor keeps."""
    lines: list[str] = []
    before = dict(os.environ)
    model = profile_workload(
        perceptron_workload, micro_batches=(1, 2), repeats=1, warmup=0, crowd=2, name="p", on_progress=lines.append
    )
    assert dict(os.environ) == before
    assert allocator_here() == "the default allocator"
    assert {each.provenance.source.partition(" busy, ")[2] for each in model.profiles} == {"a worker's allocator"}
    assert model.name == "p"
    assert model.names == tuple(path for path, _ in perceptron()[0].named_children())
    assert [line.partition(" ")[0] for line in lines] == ["1/2", "2/2"]


def test_a_users_own_settings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that the user has set stays as it is, for workers and profiles."""
    monkeypatch.setenv(VARIABLE, "glibc.malloc.arena_max=2")
    with inherited(allocator_settings()):
        assert os.environ[VARIABLE] == "glibc.malloc.arena_max=2"
    assert os.environ[VARIABLE] == "glibc.malloc.arena_max=2"


def test_used_memory_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors keep their numbers when free memory is returned, and a library without that is left alone."""
    kept, freed = zip(*((torch.full((10_000,), i), torch.empty(10_000)) for i in range(50)), strict=True)
    del freed
    return_free_memory()
    assert all((tensor == i).all() for i, tensor in enumerate(kept))
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    return_free_memory()


def test_what_goes_wrong_there_is_told_here() -> None:
    """Bad input, here a wrong name, and a killed process end in an error with the reason."""
    with pytest.raises(InputError, match=r"cannot import 'helpers\.torch_chains:nothing'"):
        profile_workload("helpers.torch_chains:nothing")
    with pytest.raises(PipeplanError, match=r"was ended by SIGKILL \(out of memory\?\); nothing was measured"):
        profile_workload(fatal_workload)


def test_a_workload_that_cannot_travel_is_refused() -> None:
    """A loss without a name cannot be sent; the error suggests an alternative."""
    with pytest.raises(InputError, match="name it as 'module:function'"):
        profile_workload(replace(perceptron_workload(), loss=lambda outputs, _: outputs.sum()))


@pytest.mark.slow
def test_the_program_measures_in_a_crowd(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``profile --crowd`` is recorded in the file, and progress goes to standard error."""
    output = tmp_path / "model.yaml"
    arguments = [
        "profile",
        "helpers.torch_chains:perceptron_workload",
        "--batch",
        "2",
        "--repeats",
        "1",
        "--crowd",
        "2",
    ]
    assert main([*arguments, "-o", str(output)]) == 0
    assert "profiling  1/3" in capsys.readouterr().err
    assert "2 workers busy" in read_model(output).profiles[0].provenance.source


@pytest.mark.skipif(not Path("/proc").exists(), reason="counts processes in /proc")
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    """An interrupt ends the program with one line and code 130; no process and no file remains."""
    output = tmp_path / "model.yaml"
    arguments = [
        "profile",
        "helpers.torch_chains:perceptron_workload",
        "--batch",
        "2",
        "--repeats",
        "100000",
        "--crowd",
        "2",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeplan.cli", *arguments, "-o", str(output)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("profiling")
    os.killpg(process.pid, signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(timeout=300) == 130
    assert [line for line in rest.splitlines() if not line.startswith("profiling")] == ["pipeplan: interrupted"]
    assert not output.exists()
    for _ in range(100):
        if not _members(process.pid):
            break
        time.sleep(0.1)
    assert not _members(process.pid)


def _members(group: int) -> list[str]:
    """Living processes of a process group."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, number = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(number) == group and state != "Z":
            found.append(folder.name)
    return found
