"""Sweeps with the arguments of `pipeplan.solve`: lists are axes, refusals are those of `solve`, before any cell."""

from pathlib import Path
from typing import Any

import pytest

import pipeplan
from pipeplan.analysis.sweep.asked import experiment_of
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job


def test_lists_are_axes() -> None:
    """And tuples and text are values of one cell."""
    options = {"depths": (2, 4), "memory": ["8GiB", "16GiB"], "seed": [0, 1], "time_limit": 5}
    found = experiment_of("mine", ["vgg-16", "gnmt-8"], "4-v100-nvlink", [32, 64], None, options)
    (grid,) = found.grids
    assert [each.source for each in grid.models] == ["vgg-16", "gnmt-8"]
    assert grid.clusters == ("4-v100-nvlink",)
    assert grid.jobs == tuple(
        Job(size, depths=(2, 4), memory=memory) for size in (32, 64) for memory in ("8GiB", "16GiB")
    )
    assert [(each.seed, each.time) for each in found.searches] == [(0, 5), (1, 5)]
    jobs = [Job(32), Job(64, depths=2)]
    assert experiment_of("mine", "vgg-16", "4-v100-nvlink", None, jobs, {}).grids[0].jobs == tuple(jobs)


def test_cells_are_solved_and_kept(tmp_path: Path) -> None:
    """A second call finds them in the folder."""
    kept = []
    asked: dict[str, Any] = {"depths": [1, 2], "time_limit": 10, "folder": tmp_path / "mine"}
    for _ in range(2):
        found = pipeplan.sweep(
            "gnmt-8", "4-v100-nvlink", 64, on_progress=lambda cell, record, old: kept.append(old), **asked
        )
        assert [record.outcome for record in found] == ["solved", "solved"]
    assert kept == [False, False, True, True]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"memry": "8GiB"}, "did you mean 'memory'"),
        ({"depths": [2, "x"]}, "write numbers with commas between"),
        ({"backend": ["cpsta"]}, "did you mean 'cpsat'"),
        ({"folder": None}, "a folder is needed"),
        ({"experiment": pipeplan.Model}, "name or the file of each model"),
        ({"place": "4-v100-nvlnk"}, "did you mean '4-v100-nvlink'"),
        ({"job": Job(32)}, "both given"),
        ({"batch": None, "memory": "8GiB"}, "no option 'memory'"),
        ({"experiment": "headline", "batch": None, "time_limit": [1, 2]}, "axes are in its file"),
    ],
)
def test_refusals_come_before_the_first_cell(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    """No folder is made."""
    asked = {"experiment": "gnmt-8", "place": "4-v100-nvlink", "batch": 64, "folder": tmp_path / "mine"} | options
    with pytest.raises(InputError, match=text):
        pipeplan.sweep(**asked)
    assert not (tmp_path / "mine").exists()
