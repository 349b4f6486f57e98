"""``pipeplan list`` and ``pipeplan show``: names, and what they stand for."""

import json
from pathlib import Path

import pytest

from helpers.instances import fat_head
from pipeplan.cli.list import KINDS, names
from pipeplan.cli.main import main
from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.io.cluster_file import write_cluster
from pipeplan.io.model_file import write_model
from pipeplan.solve import solve


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_is_listed_can_be_shown(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each name has a line in the list, and lines of its own."""
    assert main(["list", kind, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert set(names(kind)) <= set(listed) and all(listed.values())
    for name in names(kind)[:3]:
        assert main(["show", name]) == 0
        assert name in capsys.readouterr().out
    assert main(["list", kind]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(listed) + 1


def test_a_name_of_two_things_shows_both(capsys: pytest.CaptureFixture[str]) -> None:
    """GPipe is a schedule and a partitioner."""
    assert main(["show", "gpipe"]) == 0
    out = capsys.readouterr().out
    assert "gpipe, a schedule" in out and "gpipe, a partitioner" in out


def test_files_are_recognised_by_their_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model, a cluster, a plan, a job and a file of devices are shown whatever their names are."""
    cluster = Cluster.uniform(2, DeviceKind("unit"))
    write_model(fat_head(), tmp_path / "a")
    write_cluster(cluster, tmp_path / "b")
    solve(fat_head(), cluster, batch=8, time_limit=10).plan.save(tmp_path / "c")
    (tmp_path / "d").write_text("batch: 8\n")
    (tmp_path / "e").write_text("tiny: {memory: 1GiB}\n")
    for name, words in {"a": "9 layers", "b": "2 unit", "c": "proven bound", "d": "batch: 8", "e": "1.00 GiB"}.items():
        assert main(["show", str(tmp_path / name)]) == 0
        assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("vgg16", "nothing is called 'vgg16' (see pipeplan list), and there is no such file; did you mean 'vgg-16'?"),
        ("no/such.yaml", "there is no such file"),
    ],
)
def test_unknown_names_are_taught(name: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The line names the likely thing."""
    assert main(["show", name]) == 2
    assert says in capsys.readouterr().err
