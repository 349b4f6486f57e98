"""Folder of a run on this machine: what is left of it in the temporary folder."""

from pathlib import Path

import pytest

from pipeplan_executor.processes import rank
from pipeplan_executor.processes.home import run_folder


def test_a_run_leaves_nothing_but_a_used_cache_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The empty folder that torch makes on import goes with the run's; one with files stays."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    (tmp_path / "torchinductor_empty").mkdir()
    used = tmp_path / "torchinductor_used"
    used.mkdir()
    (used / "kernel").touch()
    with run_folder() as folder:
        assert folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == [used]


def test_a_rank_lives_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pulse that cannot be written is renewed all the same, so that the rank is not killed."""
    path = tmp_path / "pulse0"
    path.write_text("")
    before = path.stat().st_mtime_ns
    naps = iter((None, None))

    class DoneError(Exception):
        pass

    def sleep(_: float) -> None:
        if next(naps, DoneError) is DoneError:
            raise DoneError

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rank.time, "sleep", sleep)
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(DoneError):
        rank._pulse(path, rank.os.getppid())
    assert path.stat().st_mtime_ns > before
