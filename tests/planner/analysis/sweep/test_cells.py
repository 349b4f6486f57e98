"""Cells: names, files, fingerprints, and what an experiment leaves out."""

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.instances import equal_devices, fat_head
from pipeplan.analysis.sweep.cells import Cell, Question, ladders, left_out, timed_as
from pipeplan.analysis.sweep.experiment import Experiment, Grid, NamedModel, Search, Series
from pipeplan.analysis.sweep.record import job_label
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.io.importers.pipedream import PROFILED


def test_a_job_is_called_by_what_is_special() -> None:
    """A job's label is the batch, then every field that differs from its default."""
    assert job_label(Job(256)) == "batch 256"
    assert job_label(Job(8, optimizer="adam", micro_batches=(2, 4), zero=(1,))) == (
        "batch 8, optimizer adam, micro_batches 2 4, zero 1"
    )


def test_cells_are_named_after_models_and_files() -> None:
    """A name is kept, also with a dot; a file gives its stem; a name in the experiment has priority."""
    for model, name in (
        (NamedModel("llama3.1"), "llama3.1"),
        (NamedModel("a/vgg16.graph.txt"), "vgg16"),
        (NamedModel("a/vgg16.graph.txt", name="VGG"), "VGG"),
    ):
        cell = Cell(model, "b/two.yaml", Job(4))
        assert (cell.names, cell.label) == ((name, "two"), f"{name} on two, batch 4")


def test_no_two_cells_share_a_file() -> None:
    """Names that look alike in a file name still differ in its digest."""
    a, b = (Cell(NamedModel("x", name=name), "two", Job(4)) for name in ("a b", "a_b"))
    assert a.file != b.file
    assert Cell(NamedModel("x"), "two", Job(4)).file != Cell(NamedModel("x"), "two", Job(8)).file
    assert a.file != replace(a, search=Search(gap=0.1)).file
    assert replace(a, search=Search(backend="cbc", seed=7)).file.rpartition("__")[0].endswith("__cbc_7")


def test_a_cell_stands_once() -> None:
    """Common cells of two overlapping grids are solved once."""
    grid = Grid((NamedModel("vgg-16"), NamedModel("gnmt-8")), ("a", "b"), (Job(4),))
    cells = [cell for ladder in ladders(Experiment("x", (grid, grid)), ()) for cell in ladder]
    assert len(cells) == 4


def test_searches_are_an_axis() -> None:
    """Every model, cluster and job is a cell under each search."""
    searches = tuple(Search(backend=backend, seed=seed) for backend in ("cpsat", "cbc") for seed in (0, 1))
    grid = Grid((NamedModel("vgg-16"), NamedModel("gnmt-8")), ("a",), (Job(4),))
    cells = [cell for ladder in ladders(Experiment("x", (grid,), searches), ()) for cell in ladder]
    assert [(cell.model.source, cell.search) for cell in cells] == [
        (name, search) for name in ("vgg-16", "gnmt-8") for search in searches
    ]
    assert len({cell.file for cell in cells}) == 8


def test_series_count_as_told() -> None:
    """Series count by steps or by factors, up to the last number; anything else is refused."""
    assert list(Series("gnmt", 16, step=16, last=48).numbers()) == [16, 32, 48]
    assert list(Series("gnmt", 16, factor=2, last=100).numbers()) == [16, 32, 64]
    for wrong in ({}, {"step": 1, "factor": 2}, {"factor": 1}, {"step": -1}, {"factor": -2}):
        with pytest.raises(InputError, match="either a step"):
            Series("gnmt", 16, **wrong)
    with pytest.raises(InputError, match="either a step"):
        Series("gnmt", 0, step=1)


def test_optional_models_may_be_absent(tmp_path: Path) -> None:
    """An optional model whose file is in none of the folders is left out and named; another one stays."""
    grid = Grid((NamedModel("gone.txt", optional=True), NamedModel("vgg-16", optional=True)), ("a",), (Job(4),))
    experiment = Experiment("x", (grid,))
    assert left_out(experiment, (tmp_path,)) == ["gone.txt"]
    assert len(ladders(experiment, (tmp_path,))) == 1
    (tmp_path / "gone.txt").write_text("here again")
    assert left_out(experiment, (tmp_path,)) == []
    assert len(ladders(experiment, (tmp_path,))) == 2


def test_an_imported_profile_is_given_its_devices() -> None:
    """The profile counts for each named kind; one with a device already is not renamed."""
    plain = fat_head()
    imported = Model(
        plain.name, plain.layers, tuple(replace(profile, device=PROFILED) for profile in plain.profiles[:1])
    )
    timed = timed_as(imported, ("a", "b"))
    assert timed.profiled_devices == ("a", "b")
    assert {profile.costs for profile in timed.profiles} == {plain.profiles[0].costs}
    with pytest.raises(InputError, match="its profiles are of: unit"):
        timed_as(plain, ("a",))


def test_every_part_of_a_question_counts() -> None:
    """The fingerprint changes with model, cluster, job and search, and is the same for equal ones."""
    plain = Question(fat_head(), equal_devices(2), Job(4))
    marks = {
        plain.fingerprint,
        replace(plain, model=replace(fat_head(), name="other")).fingerprint,
        replace(plain, cluster=equal_devices(3)).fingerprint,
        replace(plain, job=Job(8)).fingerprint,
        replace(plain, search=Search(gap=0.1)).fingerprint,
    }
    assert len(marks) == 5
    assert Question(fat_head(), equal_devices(2), Job(4)).fingerprint in marks
