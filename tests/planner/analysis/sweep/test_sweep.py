"""Whole sweeps over models and clusters of a few layers and devices."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.instances import equal_devices, fat_head, model_of, two_kinds_of_device
from helpers.quick import rarely
from pipeplan.analysis.sweep.cell_file import read_cell
from pipeplan.analysis.sweep.cells import Cell
from pipeplan.analysis.sweep.experiment import Experiment, Grid, NamedModel, Search, Series
from pipeplan.analysis.sweep.experiment_file import write_experiment
from pipeplan.analysis.sweep.record import Record
from pipeplan.analysis.sweep.run import sweep
from pipeplan.cli.main import main
from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.io.cluster_file import write_cluster
from pipeplan.io.device_file import catalogue
from pipeplan.io.load import load_cluster
from pipeplan.io.model_file import write_model
from pipeplan.solve import solve

SEARCH = Search(time=20, backend="exact")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two models, one that only another kind of device can run, and two clusters, one of them too small for a model."""
    folder = tmp_path / "data"
    folder.mkdir()
    write_model(fat_head(), folder / "head.yaml")
    write_model(model_of([3, 1, 4, 1], saved=[9] * 4, sizes=(1, 2)), folder / "pi.yaml")
    write_model(model_of([1, 2], kinds=("gpu",)), folder / "foreign.yaml")
    write_cluster(equal_devices(2), folder / "two.yaml")
    write_cluster(equal_devices(1, memory=4), folder / "small.yaml")
    return folder


def experiment(models: str, clusters: str = "two", **how: object) -> Experiment:
    """One grid over files of the data folder, for a batch of four."""
    named = tuple(NamedModel(f"{name}.yaml") for name in models.split())
    places = tuple(f"{name}.yaml" for name in clusters.split())
    return Experiment("test", (Grid(named, places, (Job(4),)),), SEARCH, **how)  # type: ignore[arg-type]


def swept(asked: Experiment, folder: Path, data: Path, **how: object) -> tuple[list[Record], list[str]]:
    """The records, and the cells that were solved in this run rather than kept from an earlier one."""
    solved: list[str] = []

    def tell(cell: Cell, record: Record, kept: bool) -> None:
        if not kept:
            solved.append(record.model)

    return sweep(asked, folder, data=(data,), on_progress=tell, **how), solved  # type: ignore[arg-type]


def test_every_cell_is_the_answer_of_solve(data: Path, tmp_path: Path) -> None:
    """A row's value and bound are those of a direct call; its partitioners' values are never below the answer's."""
    records, _ = swept(experiment("head pi"), tmp_path / "out", data, workers=2)
    assert [record.model for record in records] == ["head", "pi"]
    for record, model in zip(records, (fat_head(), model_of([3, 1, 4, 1], saved=[9] * 4, sizes=(1, 2))), strict=True):
        direct = solve(model, equal_devices(2), job=Job(4), backend="exact")
        assert (record.outcome, record.answer.value, record.bound) == ("solved", direct.value, direct.bound)
        assert record.answer.peaks == direct.timeline.peaks
        assert {name: row.value for name, row in direct.baselines.items()} == {
            name: figures.value for name, figures in record.beside.items()
        }
        assert all(figures.value is None or figures.value >= direct.value for figures in record.beside.values())


def test_a_broken_cell_stops_nothing(data: Path, tmp_path: Path) -> None:
    """Errors and infeasible cells are rows with a reason, in their place; all else is solved."""
    records, _ = swept(experiment("foreign absent head", "two small"), tmp_path / "out", data)
    outcomes = [(record.model, record.cluster, record.outcome) for record in records]
    assert outcomes == [
        ("foreign", "two", "failed"),
        ("foreign", "small", "failed"),
        ("absent", "two", "failed"),
        ("absent", "small", "failed"),
        ("head", "two", "solved"),
        ("head", "small", "infeasible"),
    ]
    assert "no profile for 'unit'" in records[0].error
    assert "absent.yaml" in records[2].error
    assert "No plan fits" in records[5].error


def test_an_importer_that_breaks_is_a_row(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error while a file is read appears in that cell's row, and the others are solved."""

    def half_broken(path: Path) -> Cluster:
        if "small" in str(path):
            raise KeyError("nodes")
        return load_cluster(path)

    monkeypatch.setattr("pipeplan.analysis.sweep.cells.load_cluster", half_broken)
    records, _ = swept(experiment("head", "small two"), tmp_path / "out", data)
    assert [record.outcome for record in records] == ["failed", "solved"]
    assert records[0].error.startswith("KeyError: 'nodes' (test_sweep.py, line")


def test_a_second_run_solves_nothing_again(data: Path, tmp_path: Path) -> None:
    """Cells of an earlier run are kept, and the records are the same."""
    out = tmp_path / "out"
    first, solved = swept(experiment("head pi"), out, data)
    assert solved == ["head", "pi"]
    again, solved = swept(experiment("head pi"), out, data)
    assert solved == []
    assert again == first


def test_only_what_changed_is_asked_again(data: Path, tmp_path: Path) -> None:
    """Another model in a file, or another search, makes a finished cell out of date; a new cell is added."""
    out = tmp_path / "out"
    swept(experiment("head pi"), out, data)
    write_model(model_of([3, 1, 4, 2], sizes=(1, 2)), data / "pi.yaml")
    records, solved = swept(experiment("head pi", "two small"), out, data)
    assert solved == ["head", "pi", "pi"]
    assert len(records) == 4
    asked = experiment("head pi", "two small")
    _, solved = swept(replace(asked, search=replace(SEARCH, gap=0.5)), out, data)
    assert len(solved) == 4


def test_a_damaged_or_failed_cell_is_asked_again(data: Path, tmp_path: Path) -> None:
    """A damaged file counts as none; a failure is kept unless ``retry`` is set."""
    out = tmp_path / "out"
    first, _ = swept(experiment("head foreign"), out, data)
    file = next(path for path in out.iterdir() if path.name.startswith("head"))
    file.write_text(file.read_text()[:100])
    second, solved = swept(experiment("head foreign"), out, data)
    assert solved == ["head"]
    assert [record.answer for record in second] == [record.answer for record in first]
    _, solved = swept(experiment("head foreign"), out, data, retry=True)
    assert solved == ["foreign"]


def test_a_series_ends_with_the_first_that_does_not_fit(tmp_path: Path) -> None:
    """Members are tried upwards; the one that does not fit is the last row, and no larger one is tried."""
    write_cluster(_gpu(memory=2 * 2**30), tmp_path / "gpu.yaml")
    grid = Grid((Series("gnmt", first=4, factor=2),), ("gpu.yaml",), (Job(1),))
    records, _ = swept(Experiment("ladder", (grid,), SEARCH), tmp_path / "out", tmp_path)
    assert [record.rung for record in records] == [("gnmt", 4), ("gnmt", 8), ("gnmt", 16)]
    assert [record.outcome for record in records] == ["solved", "solved", "infeasible"]


def _gpu(memory: int) -> Cluster:
    return Cluster.uniform(1, replace(catalogue()["v100-16gb"], memory=memory))


@pytest.mark.slow
def test_killed_sweeps_go_on(data: Path, tmp_path: Path) -> None:
    """A killed sweep leaves whole cells; the next run keeps them and ends like any other."""
    write_cluster(two_kinds_of_device(), data / "kinds.yaml")
    asked = experiment("head pi", "two kinds")
    write_experiment(asked, data / "experiment.yaml")
    out = tmp_path / "out"
    command = [sys.executable, "-m", "pipeplan.cli", "sweep", str(data / "experiment.yaml"), "-o", str(out)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    cells = out / "cells"
    end = time.monotonic() + 60
    while not list(cells.glob("[!.]*.json")) and time.monotonic() < end:
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    finished = {path.name: read_cell(path) for path in cells.glob("[!.]*.json")}
    assert finished
    assert None not in finished.values()
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr.count("(kept)") == len(finished)
    rows = json.loads(done.stdout)["rows"]
    whole, _ = swept(asked, tmp_path / "elsewhere", data)
    assert [row["step_time_s"] for row in rows] == [(r.answer.value or 0) / 1e9 or None for r in whole]


@pytest.mark.parametrize("number", [signal.SIGINT, rarely(signal.SIGTERM)])
def test_a_signal_shows_what_is_finished(data: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM ends the workers, prints the rows so far, and reports that the same command resumes."""
    write_experiment(experiment("head pi"), data / "experiment.yaml")
    command = [
        sys.executable,
        "-m",
        "pipeplan.cli",
        "sweep",
        str(data / "experiment.yaml"),
        "-o",
        str(tmp_path / "out"),
    ]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    running.stderr.readline()
    running.send_signal(number)
    out, err = running.communicate(timeout=60)
    if running.returncode == 0:  # it had just finished
        return
    assert running.returncode == 130
    assert "the same command goes on" in err
    assert "head" in out


def test_the_command_writes_every_format(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table is printed in the chosen format, and written to the folder as text, Markdown, CSV and JSON."""
    write_experiment(experiment("head", beside=("uniform-deepspeed", "data-parallel")), data / "experiment.yaml")
    out = tmp_path / "out"
    assert main(["sweep", str(data / "experiment.yaml"), "-o", str(out), "--format", "csv"]) == 0
    printed = capsys.readouterr()
    assert printed.out == (out / "table.csv").read_text()
    assert printed.out.splitlines()[0].startswith("part,model,cluster,job,outcome,step_time_s")
    assert {path.suffix for path in out.glob("table.*")} == {".txt", ".md", ".csv", ".json"}
    assert json.loads((out / "table.json").read_text())["rows"][0]["model"] == "head"
    assert "| head | two | " in (out / "table.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "lesson"),
    [
        (["sweep", "headlin"], "did you mean 'headline'?"),
        (["sweep", "nowhere.yaml"], "there is no experiment nowhere.yaml"),
        (["sweep", "headline", "--workers", "0"], "the number of workers must be at least 1"),
    ],
)
def test_bad_input_teaches(arguments: list[str], lesson: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Bad input gives exit code 2 and a text with advice."""
    assert main(arguments) == 2
    assert lesson in capsys.readouterr().err
