"""Loading of models and clusters by name, and of files by their content."""

import json
import shutil
from argparse import Namespace
from pathlib import Path

import pytest

from helpers.foreign_workloads import BRANCH, training, workload
from pipeplan.cli.published import read_published
from pipeplan.core.errors import InputError
from pipeplan.io.cluster_file import cluster_data
from pipeplan.io.datasets import datasets_folder, shipped
from pipeplan.io.importers import Importer, importers
from pipeplan.io.load import foreign_format, load_carried_cluster, load_cluster, load_model
from pipeplan.io.model_file import model_data
from pipeplan.io.text import json_text, yaml_text


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with one file of every kind, under names that tell nothing."""
    (tmp_path / "a.data").write_text(BRANCH)
    (tmp_path / "b.data").write_text(json.dumps(training()))
    (tmp_path / "c.data").write_text(json.dumps(workload()))
    model, cluster = load_model(tmp_path / "a.data"), load_cluster(tmp_path / "b.data")
    (tmp_path / "d.data").write_text(yaml_text(model_data(model)))
    (tmp_path / "e.data").write_text(json_text(model_data(model)))
    (tmp_path / "f.data").write_text(yaml_text(cluster_data(cluster)))
    return tmp_path


@pytest.mark.parametrize(("name", "layers"), [("a", 5), ("b", 3), ("c", 3), ("d", 5), ("e", 5)])
def test_models_are_known_by_content(files: Path, name: str, layers: int) -> None:
    """The format is recognised whatever the file is called; our own works as YAML and as JSON."""
    assert len(load_model(str(files / f"{name}.data")).layers) == layers


@pytest.mark.parametrize(("name", "devices"), [("b", 4), ("c", 3), ("f", 4)])
def test_clusters_are_known_by_content(files: Path, name: str, devices: int) -> None:
    """A cluster file is one, and so is a workload that carries its devices."""
    assert len(load_cluster(files / f"{name}.data").devices) == devices


def test_carried_clusters(files: Path) -> None:
    """Only workloads that bring devices have a cluster to ask for."""
    assert [load_carried_cluster(files / f"{name}.data") is None for name in "abcd"] == [True, False, False, True]
    assert load_carried_cluster("vgg-16") is None


def test_every_importer_has_a_file_here(files: Path) -> None:
    """Each of the first files is recognised by one importer, our own by none."""
    found = [foreign_format(files / f"{name}.data") for name in "abcdef"]
    assert found[:3] == [importer.name for importer in importers()]
    assert found[3:] == [None] * 3


def test_a_new_importer_is_one_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A format in the list is recognised; it may have no devices and no options."""
    known = load_model("vgg-16")
    words = Importer(
        "words", lambda text: text.startswith("words"), lambda text, where, name: (known, None), plain=True
    )
    monkeypatch.setattr("pipeplan.io.load.importers", lambda: (*importers(), words))
    path = tmp_path / "x.words"
    path.write_text("words: [")  # not YAML
    assert load_model(path) is known
    assert load_carried_cluster(path) is None
    with pytest.raises(InputError, match=r"x\.words is a file of words, which names no devices"):
        load_cluster(path)
    with pytest.raises(InputError, match="no option 'samples'; it has none"):
        load_model(path, samples=2)
    with pytest.raises(InputError, match="--rule published needs a file of PipeDream, dnn-partitioning or Piper"):
        read_published(Namespace(model=str(path)))


def test_options_reach_the_importer(files: Path) -> None:
    """An importer's option is handed on; one it does not have is refused with those it has."""
    assert load_model(files / "a.data", samples=2).profiles[0].micro_batch == 2
    with pytest.raises(
        InputError, match=r"no option 'sample'; it has merge_misbooked, samples; did you mean 'samples'"
    ):
        load_model(files / "a.data", sample=2)
    with pytest.raises(InputError, match="no option"):
        load_model(files / "d.data", samples=2)


def test_every_shipped_name_loads() -> None:
    """Each name in the datasets is a model or a cluster that can be read."""
    assert all(load_model(name).layers for name in shipped("models"))
    assert all(load_cluster(name).devices for name in shipped("clusters"))
    assert len(shipped("models")) >= 9
    assert len(shipped("clusters")) >= 5


def test_a_misspelt_name_gets_suggestions_and_the_whole_list() -> None:
    """The near misses come first, then everything there is."""
    with pytest.raises(InputError) as caught:
        load_model("vgg16")
    assert "no model is called 'vgg16'; did you mean 'vgg-16'?" in str(caught.value)
    assert all(name in str(caught.value) for name in shipped("models"))
    with pytest.raises(InputError, match=r"no cluster is called '8-v100'.*8-v100-nvlink"):
        load_cluster("8-v100")


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    """An argument that looks like a path is reported as a missing file, not a missing name; a folder as a folder."""
    with pytest.raises(InputError, match=r"there is no file modle\.yaml"):
        load_model("modle.yaml")
    with pytest.raises(InputError, match="there is no file some/where"):
        load_model("some/where")
    with pytest.raises(InputError, match="is a folder"):
        load_model(tmp_path)


def test_a_file_of_another_kind_is_called_by_its_kind(files: Path) -> None:
    """A cluster given as a model, or a model as a cluster, is named for what it is."""
    with pytest.raises(InputError, match="looks like a cluster; here a model is wanted"):
        load_model(files / "f.data")
    with pytest.raises(InputError, match="looks like a model; here a cluster is wanted"):
        load_cluster(files / "d.data")


def test_a_graph_takes_its_folder_s_name(files: Path) -> None:
    """PipeDream calls every file graph.txt; the folder says which net it is."""
    folder = files / "resnet"
    folder.mkdir()
    shutil.copy(files / "a.data", folder / "graph.txt")
    shutil.copy(files / "a.data", folder / "vgg16.graph.txt")
    assert load_model(folder / "graph.txt").name == "resnet"
    assert load_model(folder / "vgg16.graph.txt").name == "vgg16"


def test_the_datasets_are_found() -> None:
    """The folder holds the catalogue of devices."""
    assert (datasets_folder() / "devices.yaml").is_file()
