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
from pipeplan.analysis.sweep.cell_file import read_cell, write_cell
from pipeplan.analysis.sweep.cells import Cell
from pipeplan.analysis.sweep.experiment import Experiment, Grid, NamedModel, Search, Series
from pipeplan.analysis.sweep.experiment_file import write_experiment
from pipeplan.analysis.sweep.record import Record
from pipeplan.analysis.sweep.run import Shard, sweep
from pipeplan.cli.main import main
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.plan import Plan
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
    return Experiment("test", (Grid(named, places, (Job(4),)),), (SEARCH,), **how)  # type: ignore[arg-type]


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


def test_a_failed_cell_stops_nothing(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies and a cell in which nothing fits are rows with a reason; the rest is solved."""
    out = tmp_path / "out"
    monkeypatch.setattr("pipeplan.analysis.sweep.run.work", divmod)  # raises in the process of the cell
    records, _ = swept(experiment("pi"), out, data)
    assert [(record.outcome, record.reason) for record in records] == [("failed", "its process ended with exit code 1")]
    assert records[0].wall is not None and records[0].processor is None
    monkeypatch.undo()
    records, solved = swept(experiment("pi head", "two small"), out, data)
    outcomes = [(record.model, record.cluster, record.outcome) for record in records]
    assert outcomes == [
        ("pi", "two", "failed"),
        ("pi", "small", "infeasible"),
        ("head", "two", "solved"),
        ("head", "small", "infeasible"),
    ]
    assert solved == ["pi", "head", "head"]
    assert "No plan fits" in records[1].reason


def test_every_fault_is_listed_before_the_first_cell(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, files, back ends, importers that break, and jobs that a model or cluster excludes: one error, no cell."""

    def half_broken(path: Path) -> Cluster:
        if "small" in str(path):
            raise KeyError("nodes")
        return load_cluster(path)

    monkeypatch.setattr("pipeplan.analysis.sweep.cells.load_cluster", half_broken)
    monkeypatch.setattr("pipeplan.analysis.sweep.faults.try_backend", lambda name: f"fails: no {name}")
    asked = experiment("foreign absent head", "two small nowhere")
    wrong = replace(asked.grids[0], jobs=(Job(4), Job(4, schedules=("1f1b-os",)), Job(4, pin=(("l99", "d0"),))))
    with pytest.raises(InputError) as caught:
        swept(replace(asked, grids=(wrong,)), tmp_path / "out", data)
    said = str(caught.value)
    for lesson in (
        "test: 7 things are wrong",
        "backend 'exact' does not work here (fails: no exact)",
        "there is no file absent.yaml",
        "KeyError: 'nodes' (test_sweep.py, line",
        "there is no file nowhere.yaml",
        "foreign on two, batch 4: chain has no profile for 'unit'",
        "foreign on two, batch 4, pin {'l99': 'd0'}, and 1 more: a constraint names layer 'l99'",
    ):
        assert lesson in said, said
    assert not (tmp_path / "out").exists()


def test_every_cell_keeps_its_plan(data: Path, tmp_path: Path) -> None:
    """The plan in a cell's file is that of its row; a cell without a plan has no file."""
    out = tmp_path / "out"
    records, _ = swept(experiment("head pi", "two small"), out, data)
    plans = [Plan.load(out / record.plan_file) for record in records if record.plan_file]
    assert [plan.step_time for plan in plans] == [r.answer.value for r in records if r.outcome == "solved"]
    assert len(list((out / "plans").iterdir())) == len(plans) == 2


def test_searches_are_cells_of_their_own(data: Path, tmp_path: Path) -> None:
    """Seeds and back ends each have a row and a file, and a second run keeps all of them."""
    searches = tuple(replace(SEARCH, backend=backend, seed=seed) for backend in ("cbc", "cpsat") for seed in (0, 1))
    asked = replace(experiment("pi"), searches=searches)
    records, solved = swept(asked, tmp_path / "out", data, workers=2)
    assert [record.search for record in records] == list(searches)
    assert len({record.answer.value for record in records}) == 1
    assert len(solved) == 4
    assert swept(asked, tmp_path / "out", data) == (records, [])


def test_cells_of_an_earlier_version_are_refused(data: Path, tmp_path: Path) -> None:
    """A folder whose cells have no plans is not used, and nothing in it is changed."""
    old = tmp_path / "old"
    (old / "cells").mkdir(parents=True)
    (old / "cells" / "head__two.json").write_text('{"format": "pipeplan-cell/1"}')
    with pytest.raises(InputError, match="of an earlier version of pipeplan"):
        swept(experiment("head"), old, data)
    with pytest.raises(InputError, match="of an earlier version of pipeplan"):
        swept(experiment("head"), tmp_path / "new", data, merged=(old,))
    assert [path.name for path in old.iterdir()] == ["cells"]


def test_shards_share_the_cells_and_merge(data: Path, tmp_path: Path) -> None:
    """Each cell is in one shard; merged, they are the records of the whole in its order, and missing ones are named."""
    write_cluster(two_kinds_of_device(), data / "kinds.yaml")
    asked = experiment("pi", "two kinds small")
    (two, small), (kinds,) = (swept(asked, tmp_path / str(n), data, shard=Shard(n, 2))[0] for n in (1, 2))
    found, _ = swept(asked, tmp_path / "all", data, merged=(tmp_path / "1",))
    assert [record.outcome for record in found] == ["solved", "missing", "infeasible"]
    whole, _ = swept(asked, tmp_path / "all", data, merged=(tmp_path / "2",))
    assert whole == [two, kinds, small]
    assert [Plan.load(tmp_path / "all" / record.plan_file).cluster for record in (two, kinds)]
    assert swept(asked, tmp_path / "all", data) == (whole, [])


@pytest.mark.slow
def test_merging_prefers_a_cell_that_did_not_fail(data: Path, tmp_path: Path) -> None:
    """Of two folders with one cell, that which failed counts only without the other; one out of date never does."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    (record,), _ = swept(experiment("pi"), good, data)
    swept(experiment("pi"), bad, data)
    file = next((bad / "cells").iterdir())
    write_cell(replace(record, outcome="failed"), file)
    assert swept(experiment("pi"), tmp_path / "a", data, merged=(bad, good))[0] == [record]
    assert swept(experiment("pi"), tmp_path / "b", data, merged=(good, bad))[0] == [record]
    write_cell(replace(record, fingerprint="other"), file)
    assert swept(experiment("pi"), tmp_path / "c", data, merged=(bad,))[0][0].outcome == "missing"
    with pytest.raises(InputError, match="there are no cells in"):
        swept(experiment("pi"), tmp_path / "d", data, merged=(tmp_path / "nowhere",))


def test_a_second_run_solves_nothing_again(data: Path, tmp_path: Path) -> None:
    """Cells of an earlier run are kept, and the records are the same."""
    out = tmp_path / "out"
    first, solved = swept(experiment("head pi"), out, data)
    assert solved == ["head", "pi"]
    again, solved = swept(experiment("head pi"), out, data)
    assert solved == []
    assert again == first


@pytest.mark.slow
def test_only_what_changed_is_asked_again(data: Path, tmp_path: Path) -> None:
    """Another model in a file, or another search, makes a finished cell out of date; a new cell is added."""
    out = tmp_path / "out"
    swept(experiment("head pi"), out, data)
    write_model(model_of([3, 1, 4, 2], sizes=(1, 2)), data / "pi.yaml")
    records, solved = swept(experiment("head pi", "two small"), out, data)
    assert solved == ["head", "pi", "pi"]
    assert len(records) == 4
    asked = experiment("head pi", "two small")
    _, solved = swept(replace(asked, searches=(replace(SEARCH, gap=0.5),)), out, data)
    assert len(solved) == 4


@pytest.mark.slow
def test_a_damaged_or_failed_cell_is_asked_again(data: Path, tmp_path: Path) -> None:
    """A damaged file, or one without its plan, counts as none; a failure is kept unless ``retry`` is set."""
    out = tmp_path / "out"
    first, _ = swept(experiment("head pi"), out, data)
    file = next((out / "cells").glob("head*"))
    file.write_text(file.read_text()[:100])
    second, solved = swept(experiment("head pi"), out, data)
    assert solved == ["head"]
    assert [record.answer for record in second] == [record.answer for record in first]
    next((out / "plans").glob("pi*")).unlink()
    assert swept(experiment("head pi"), out, data)[1] == ["pi"]
    failed = replace(second[0], outcome="failed", error="out of memory")
    write_cell(failed, file)
    kept, solved = swept(experiment("head pi"), out, data)
    assert (kept[0], solved) == (failed, [])
    _, solved = swept(experiment("head pi"), out, data, retry=True)
    assert solved == ["head"]


def test_a_series_ends_with_the_first_that_does_not_fit(tmp_path: Path) -> None:
    """Members are tried upwards; the one that does not fit is the last row, and no larger one is tried."""
    write_cluster(_gpu(memory=5 * 2**29), tmp_path / "gpu.yaml")  # between the least memory of gnmt-8 and gnmt-16
    grid = Grid((Series("gnmt", first=4, factor=2),), ("gpu.yaml",), (Job(1),))
    records, _ = swept(Experiment("ladder", (grid,), (SEARCH,)), tmp_path / "out", tmp_path)
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
    end = time.monotonic() + 300
    while not list(cells.glob("[!.]*.json")) and time.monotonic() < end:
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    finished = {path.name: read_cell(path) for path in cells.glob("[!.]*.json")}
    assert finished
    assert None not in finished.values()
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=3000)
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
    out, err = running.communicate(timeout=300)
    if running.returncode == 0:  # it had just finished
        return
    assert running.returncode == 130
    assert "the same command goes on" in err
    assert "head" in out


def test_the_command_writes_every_format(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is printed in the chosen format, however wide, and written in all, with the spread over seeds."""
    monkeypatch.setenv("COLUMNS", "40")
    asked = experiment("head", beside=("uniform-deepspeed", "data-parallel"))
    write_experiment(
        replace(asked, searches=tuple(replace(SEARCH, backend="cpsat", seed=seed) for seed in (0, 1))),
        data / "experiment.yaml",
    )
    out = tmp_path / "out"
    assert main(["sweep", str(data / "experiment.yaml"), "-o", str(out), "--format", "csv"]) == 0
    printed = capsys.readouterr()
    assert printed.out == (out / "table.csv").read_text()
    assert printed.out.splitlines()[0].startswith("part,model,cluster,series,number,job,batch,")
    assert "head on two, batch 4, seed 1: " in printed.err
    names = {path.name.removeprefix("table") for path in out.glob("table*")}
    assert names == {".txt", ".md", ".csv", ".json", ".jsonl", "-seeds.csv"}
    assert json.loads((out / "table.json").read_text())["rows"][0]["model"] == "head"
    assert "| head | two | 1 | " in (out / "table.md").read_text()
    assert "**over seeds**" in (out / "table.md").read_text()
    assert len((out / "table-seeds.csv").read_text().splitlines()) == 2


def test_failed_and_missing_cells_are_exit_code_1(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables are written all the same, with outcome and reason; a shard has tables of its own."""
    write_experiment(experiment("head pi"), data / "experiment.yaml")
    out = tmp_path / "out"
    command = ["sweep", str(data / "experiment.yaml"), "-o", str(out)]
    monkeypatch.setattr("pipeplan.analysis.sweep.run.work", divmod)
    assert main([*command, "--shard", "1/2"]) == 1
    monkeypatch.undo()
    said = capsys.readouterr()
    assert "1 of 1 cells failed; --retry solves them again" in said.err
    assert "| failed | its process ended with exit code 1 | - |" in (out / "table-1-of-2.md").read_text()
    assert main([*command, "--merge"]) == 1
    assert "1 of 2 cells are missing" in capsys.readouterr().err
    assert "| pi | two | missing | not in any of the folders" in (out / "table.md").read_text()
    assert main([*command, "--shard", "2/2"]) == 0
    assert main([*command, "--retry"]) == 0


@pytest.mark.parametrize(
    ("arguments", "lesson"),
    [
        (["sweep", "headlin"], "did you mean 'headline'?"),
        (["sweep", "nowhere.yaml"], "there is no experiment nowhere.yaml"),
        (["sweep", "headline", "--workers", "0"], "the number of workers must be at least 1"),
        (["sweep", "headline", "--shard", "2"], "write its number and how many there are, like 2/8"),
        (["sweep", "headline", "--shard", "0/2"], "there is no shard 0 of 2; shards are 1/N"),
        (["sweep", "headline", "--shard", "1/2", "--merge"], "--merge solves nothing, and --shard"),
    ],
)
def test_bad_input_teaches(arguments: list[str], lesson: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Bad input gives exit code 2 and a text with advice."""
    assert main(arguments) == 2
    assert lesson in capsys.readouterr().err
