"""The wheel: its contents, and what it does in environments that hold nothing else, with each extra alone."""

import os
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from helpers.shared_data import ROOT

PACKAGES = {"pipeplan", "pipeplan_formulations", "pipeplan_executor"}
SOLVE = ("solve", "gnmt-8", "4-v100-nvlink", "--batch", "16", "--gap", "0.5", "--time", "20")
EXPERIMENT = """
name: small
search: {time: 20, gap: 0.5, workers: 1}
beside: []
grids:
- {models: [vgg-16], clusters: [4-v100-nvlink], jobs: [{batch: 32}]}
"""
MODEL = "hf_free:two_layers"
SOURCE = """
import torch
from torch import nn

def two_layers():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
"""
PROFILE = ("profile", MODEL, "--input", "float32:8", "--batch", "2", "-o", "model.yaml")
PLAN = ("solve", "model.yaml", "2-cpu", "--batch", "8", "--depth", "2", "--gap", "0.5", "-o", "plan.json")
RUN = ("run", "plan.json", MODEL, "--input", "float32:8", "--steps", "1", "--warmup", "0", "--verify")
NEEDS = {
    "torch": [PROFILE, PLAN, RUN],
    "plot": [(*SOLVE, "--plot", "plan.svg")],
    "report": [(*SOLVE, "--report", "page.html")],
    "parquet": [("sweep", "small.yaml", "--parquet")],
    "completion": [("--print-completion", "bash")],
}
"""For each extra, commands that need it, in the order in which they work."""
TRAINING = [
    PROFILE,
    RUN,
    ("demo",),
    ("machine", "-o", "machine.yaml"),
    ("calibrate", "plan.json", MODEL, "gnmt-8", "4-v100-nvlink"),
]
WITHOUT = {extra: TRAINING if extra == "torch" else commands for extra, commands in NEEDS.items()}
"""For each extra, commands that name it where it is missing."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_three_packages_and_the_data(wheel: Path) -> None:
    """Exactly three top-level packages and the metadata; the datasets inside the planner; types marked."""
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == PACKAGES
    data = {name.removeprefix("pipeplan/_datasets/") for name in names if name.startswith("pipeplan/_datasets/")}
    expected = {str(path.relative_to(ROOT / "datasets")) for path in (ROOT / "datasets").rglob("*.*")}
    assert data == expected
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_the_wheel_works_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere, it finds its data and solves a problem."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = (
        f"import pipeplan, pathlib; assert pathlib.Path(pipeplan.__file__).is_relative_to({str(site)!r});"
        "model = pipeplan.load_model('vgg-16'); cluster = pipeplan.load_cluster('4-v100-nvlink');"
        "print(len(pipeplan.solve(model, cluster, batch=32, backend='exact', time_limit=20).plan.stages) >= 1)"
    )
    done = _done([sys.executable, "-c", code], tmp_path, path=str(site))
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("extra", ["", *NEEDS])
def test_the_wheel_alone_in_an_environment(wheel: Path, tmp_path: Path, extra: str) -> None:
    """Its commands work with the extra that they need; without, one line names the extra."""
    program = installed(wheel, extra, tmp_path)
    (tmp_path / "small.yaml").write_text(EXPERIMENT)
    (tmp_path / "hf_free.py").write_text(SOURCE)
    for command in [("--version",), ("--help",), ("list", "models"), SOLVE, *NEEDS.get(extra, [])]:
        done = _done([program, *command], tmp_path)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        assert done.stdout or command[0] in ("profile",), command
    for other, command in [(other, each) for other, commands in WITHOUT.items() for each in commands]:
        if other != extra:
            done = _done([program, *command], tmp_path)
            assert done.returncode == 2, f"{command}: {done.stdout}{done.stderr}"
            assert done.stderr.strip().splitlines()[-1].endswith(f"pip install 'pipeplan[{other}]'"), done.stderr
            assert "Traceback" not in done.stderr


def installed(wheel: Path, extra: str, folder: Path) -> str:
    """Install the wheel with one extra in an environment of its own, and return its program."""
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    what = [f"{wheel}[{extra}]" if extra else str(wheel)]
    if extra == "torch":  # the version of these tests, of the many that would do
        what.append(f"torch=={_torch()}")
    done = _done([str(programs / "pip"), "install", "--quiet", "--retries", "1", *what], folder)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("no package index answers")
    assert done.returncode == 0, done.stderr
    return str(programs / "pipeplan")


def _torch() -> str:
    try:
        return version("torch").partition("+")[0]
    except PackageNotFoundError:
        return pytest.skip("these tests have no torch whose version could be installed")


def _done(command: list[str], folder: Path, path: str = "") -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1500, check=False
    )
