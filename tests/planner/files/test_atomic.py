"""A file is written whole or not at all."""

import os
from pathlib import Path

import pytest

from pipeplan.errors import InputError
from pipeplan.files import atomic
from pipeplan.files.atomic import write_whole


def test_text_and_bytes_arrive(tmp_path: Path) -> None:
    """What was written stands in the file, as UTF-8, and nothing else in the folder."""
    path = tmp_path / "plan.json"
    write_whole(path, "é")
    assert path.read_bytes() == "é".encode()
    write_whole(path, b"\x00\x01")
    assert path.read_bytes() == b"\x00\x01"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """When the disk is full or the rename fails, the old content stays and no part is left behind."""
    path = tmp_path / "plan.json"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((atomic.os, "fsync") if step == "fsync" else (Path, "replace")), fail)
    with pytest.raises(InputError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """The error says which path cannot be written, and why."""
    with pytest.raises(InputError, match=r"cannot write .*nowhere/plan\.json.*folder must exist"):
        write_whole(tmp_path / "nowhere" / "plan.json", "new")


def test_permissions_are_ordinary(tmp_path: Path) -> None:
    """A new file gets what the umask allows, a replaced one keeps what it had."""
    path = tmp_path / "plan.json"
    old = os.umask(0o027)
    try:
        write_whole(path, "new")
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o600)
    write_whole(path, "newer")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_is_followed(tmp_path: Path) -> None:
    """Writing through a symbolic link replaces the file it points to, not the link."""
    (tmp_path / "real.json").write_text("old")
    link = tmp_path / "link.json"
    link.symlink_to("real.json")
    write_whole(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"
