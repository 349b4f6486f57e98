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
        Search(time=5.0),
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
        ({"name": "x", "grids": [grid()], "search": {"time": 0}}, ["search.time"]),
    ],
)
def test_mistakes_are_named_with_their_path(data: dict, lessons: list[str]) -> None:
    """One error lists everything that is wrong."""
    with pytest.raises(InputError) as caught:
        experiment_from_data(data, "x.yaml")
    for lesson in ("x.yaml", *lessons):
        assert lesson in str(caught.value)


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
