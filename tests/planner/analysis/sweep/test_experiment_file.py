"""Experiment files: short forms, and every mistake with its path."""

from pathlib import Path

import pytest

from pipeplan.analysis.sweep.experiment import Experiment, Grid, NamedModel, Search, Series
from pipeplan.analysis.sweep.experiment_file import experiment_from_data, find_experiment, read_experiment
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.io.datasets import shipped
from pipeplan.io.load import load_cluster, load_model


def grid(**changes: object) -> dict[str, object]:
    """A small valid grid with some fields changed."""
    return {"models": ["vgg-16"], "clusters": ["4-v100-nvlink"], "jobs": [{"batch": 8}]} | changes


def test_short_and_long_forms() -> None:
    """A word is a model; a series has its numbers; missing fields have their defaults."""
    models = [
        "vgg-16",
        {"model": "a.txt", "times": ["v100"], "optional": True},
        {"series": "gnmt", "first": 16, "step": 16},
    ]
    data = {"name": "x", "grids": [grid(models=models)], "search": {"time": 5}, "beside": ["gpipe", "data-parallel"]}
    assert experiment_from_data(data, "x.yaml") == Experiment(
        "x",
        (
            Grid(
                (
                    NamedModel("vgg-16"),
                    NamedModel("a.txt", times=("v100",), optional=True),
                    Series("gnmt", 16, step=16),
                ),
                ("4-v100-nvlink",),
                (Job(8),),
            ),
        ),
        (Search(time=5.0),),
        ("gpipe", "data-parallel"),
    )


@pytest.mark.parametrize(
    ("data", "lessons"),
    [
        ({"name": "x", "grids": []}, ["grids: empty"]),
        (
            {"name": "x", "grids": [grid(), grid(models=[], jobs=[])]},
            ["grids[1].models: empty", "grids[1].jobs: empty"],
        ),
        ({"name": "x", "grids": [grid()], "beside": ["data-paralel"]}, ["beside[0]", "did you mean 'data-parallel'"]),
        (
            {"name": "x", "grids": [grid(models=[{"series": "gnmt", "first": 8, "optional": True}])]},
            ["grids[0].models[0]: optional: an entry is either a model or a series"],
        ),
        ({"name": "x", "grids": [grid(models=[{"series": "gnmt", "first": 8}])]}, ["either a step"]),
        ({"name": "x", "grids": [grid(models=[{"series": "vgg", "first": 8, "step": 1}])]}, ["known are gnmt"]),
        ({"name": "x", "grids": [grid(models=[{"series": "gnmt", "step": 1}])]}, ["first: missing"]),
        ({"name": "x", "grids": [grid(models=[{"optional": True}])]}, ["model: missing"]),
        (
            {"name": "x", "grids": [grid(jobs=[{"batch": 8}, {"bath": 8}])]},
            ["grids[0].jobs[1]", "batch: missing", "'batch'"],
        ),
        ({"name": "x", "grids": [grid(modles=[])]}, ["grids[0].modles: unknown field", "'models'"]),
        ({"name": "x", "grids": [grid()], "search": {"time": 0}}, ["search: one thing", "time: should be greater"]),
        ({"name": "x", "grids": [grid()], "search": [{"seed": 1}, {"sed": 1}]}, ["search[1]", "did you mean 'seed'"]),
        ({"name": "x", "grids": [grid()], "search": {"backend": ["cbc", "cplx"]}}, ["search: backend 'cplx'"]),
        ({"name": "x", "grids": [grid()], "search": {"seed": []}}, ["search.seed: empty"]),
        ({"name": "x", "grids": [grid()], "search": []}, ["search: empty"]),
        ({"name": "x", "grids": [grid()], "search": 3}, ["search: expected fields and values"]),
        (
            {"name": "x", "grids": [grid(jobs=[{"bath": 8}])], "search": {"gap": -1}, "beside": ["gpip"]},
            ["3 things are wrong", "grids[0].jobs[0]", "search: one thing", "beside[0]"],
        ),
    ],
)
def test_mistakes_are_named_with_their_path(data: dict, lessons: list[str]) -> None:
    """One error lists everything that is wrong."""
    with pytest.raises(InputError) as caught:
        experiment_from_data(data, "x.yaml")
    for lesson in ("x.yaml", *lessons):
        assert lesson in str(caught.value)


def test_searches_are_all_combinations_of_lists() -> None:
    """A list of values is an axis; a list of entries is one after another."""
    searches = [{"time": 5, "backend": ["cpsat", "cbc"], "seed": [0, 1]}, {"seed": 7}]
    found = experiment_from_data({"name": "x", "grids": [grid()], "search": searches}, "x.yaml").searches
    assert found == (
        Search(5.0, backend="cpsat", seed=0),
        Search(5.0, backend="cpsat", seed=1),
        Search(5.0, backend="cbc", seed=0),
        Search(5.0, backend="cbc", seed=1),
        Search(seed=7),
    )


def test_faults_of_cells_stand_beside_those_of_the_file() -> None:
    """One error lists the faults of the file and what further checks find in the rest of it."""
    data = {"name": "x", "grids": [grid(jobs=[{"batch": 8}, {"bath": 8}])]}
    with pytest.raises(InputError, match=r"(?s)2 things are wrong.*batch: missing.*1 job is left"):
        experiment_from_data(data, "x.yaml", lambda read: [f"{len(read.grids[0].jobs)} job is left"])


@pytest.mark.parametrize("name", sorted(shipped("experiments")))
def test_shipped_experiments_name_what_exists(name: str) -> None:
    """Every model, series and cluster of a shipped experiment loads, except optional files."""
    experiment = read_experiment(find_experiment(name))
    assert experiment.name == name
    for grid in experiment.grids:
        assert all(load_cluster(cluster).devices for cluster in grid.clusters)
        for model in grid.models:
            if isinstance(model, Series):
                assert load_model(f"{model.series}-{model.first}").layers
            elif not model.optional:
                assert load_model(model.source).layers


def test_a_path_is_an_experiment_too(tmp_path: Path) -> None:
    """Any word except a shipped name is a file, or an error that lists the names."""
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine")
    assert find_experiment(str(file)) == file
    with pytest.raises(InputError, match=r"known are .*headline"):
        find_experiment("mine")
