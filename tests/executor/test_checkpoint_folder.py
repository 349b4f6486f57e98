"""A folder of checkpoints: at every moment its latest is complete."""

from pathlib import Path

import pytest

from pipeplan.core.errors import InputError
from pipeplan_executor.checkpoint import folder as places


def written(folder: Path, step: int, keep: int = 2) -> Path:
    """A checkpoint of two files."""
    part = places.begin(folder, step)
    (part / "tensors").write_text(str(step))
    (part / places.MANIFEST).write_text("{}")
    return places.publish(part, step, keep)


def test_the_newest_stay_and_latest_names_the_last(tmp_path: Path) -> None:
    """The newest ``keep`` checkpoints stay, and the folder resolves to the one that was written last."""
    for step in (5, 10, 15):
        path = written(tmp_path / "new" / "run", step)
    assert path.name == "step-00000015"
    assert [each.name for each in places.whole(path.parent)] == ["step-00000010", "step-00000015"]
    assert places.latest(path.parent) == places.resolve(path.parent) == places.resolve(path) == path
    assert sorted(each.name for each in path.parent.iterdir()) == ["latest", "step-00000010", "step-00000015"]


def test_a_run_that_went_back_does_not_lose_what_it_saves(tmp_path: Path) -> None:
    """After a return to an earlier step, what is written counts as newer than later steps, and takes no name twice."""
    for step in (10, 20, 30, 10, 20):
        path = written(tmp_path, step, keep=3)
    assert path.name == "step-00000020-2"
    assert {each.name for each in places.whole(tmp_path)} == {"step-00000030", "step-00000010-2", "step-00000020-2"}
    assert places.latest(tmp_path) == path


@pytest.mark.parametrize("moment", ["sync_folder", "write_whole", "_remove"])
def test_a_run_that_dies_while_it_saves_leaves_a_whole_one(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a save breaks off, the folder's latest is whole, and the next save clears up."""
    written(tmp_path, 1, keep=1)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(places, moment, _dies)
        written(tmp_path, 2, keep=1)
    latest = places.resolve(tmp_path)
    assert (latest / "tensors").read_text() == str(int(latest.name.removeprefix("step-")))
    assert written(tmp_path, 3, keep=1) == places.resolve(tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["latest", "step-00000003"]


def _dies(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_first_save_that_dies_ahead_of_its_pointer_counts(tmp_path: Path) -> None:
    """A whole checkpoint is found even where the run died before it could be called the latest."""
    path = written(tmp_path, 1)
    (tmp_path / places.POINTER).unlink()
    assert places.latest(tmp_path) == path


def test_what_is_not_whole_is_refused(tmp_path: Path) -> None:
    """A half-written checkpoint, one that was removed by hand and an empty folder are distinguished."""
    with pytest.raises(InputError, match="there is no checkpoint"):
        places.resolve(tmp_path / "absent")
    with pytest.raises(InputError, match="holds no whole checkpoint"):
        places.resolve(tmp_path)
    with pytest.raises(InputError, match="the run died while it wrote it"):
        places.resolve(places.begin(tmp_path, 3))
    first, second = written(tmp_path, 4), written(tmp_path, 5)
    (second / places.MANIFEST).unlink()
    with pytest.raises(
        InputError, match=rf"step-00000005, which is gone or not whole \(whole ones there: {first.name}\)"
    ):
        places.resolve(tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A file in the way of the folder is an error that names it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write checkpoints into"):
        places.begin(tmp_path / "file" / "run", 1)
