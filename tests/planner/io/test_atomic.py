"""Atomic writing of files."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from pipeplan.core.errors import InputError
from pipeplan.io import atomic
from pipeplan.io.atomic import try_to_write, write_whole


def test_text_and_bytes_arrive(tmp_path: Path) -> None:
    """The content is in the file, as UTF-8, and no other file is in the folder."""
    path = tmp_path / "plan.json"
    write_whole(path, "é")
    assert path.read_bytes() == "é".encode()
    write_whole(path, b"\x00\x01")
    assert path.read_bytes() == b"\x00\x01"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """If the disk is full or the rename fails, the old content stays and no temporary file remains."""
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


def test_a_fifo_is_written_into(tmp_path: Path) -> None:
    """Content written to a FIFO reaches its reader, and the FIFO stays one."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    found: list[bytes] = []
    reader = Thread(target=lambda: found.append(path.read_bytes()))
    reader.start()
    write_whole(path, "content")
    reader.join()
    assert found == [b"content"]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    """A device node, named itself or through a link, takes what is written and is there afterwards."""
    node, link = tmp_path / "null", tmp_path / "link"
    try:
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        node.write_bytes(b"")
    except PermissionError:
        pytest.skip("making a device node takes root")
    link.symlink_to("null")
    write_whole(node, "x" * 10**6)
    write_whole(link, "x")
    assert stat.S_ISCHR(node.stat().st_mode)
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "null"]


def test_standard_output_keeps_what_was_printed(tmp_path: Path) -> None:
    """With standard output redirected to a file, content for /dev/stdout follows earlier output."""
    code = (
        "from pathlib import Path; from pipeplan.io.atomic import write_whole; "
        "print('before'); write_whole(Path('/dev/stdout'), 'content\\n'); print('after')"
    )
    with (tmp_path / "out").open("w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "before\ncontent\nafter\n"


@pytest.mark.parametrize(
    ("name", "lesson"),
    [("folder", "is a folder"), ("no/where", "must exist"), ("x" * 300, "too long"), ("loop", "[Ll]oop|[Ss]ymbolic")],
)
def test_trying_says_what_writing_would(tmp_path: Path, name: str, lesson: str) -> None:
    """A path that cannot be written to is refused before anything is written, in the words of writing itself."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match=lesson):
        try_to_write(tmp_path / name)
    with pytest.raises(InputError, match=lesson):
        write_whole(tmp_path / name, "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "loop"]


def test_trying_changes_nothing(tmp_path: Path) -> None:
    """A file that was tried holds what it held, and one that is not there is still not there."""
    old = tmp_path / "old"
    old.write_text("old")
    try_to_write(old)
    try_to_write(tmp_path / ("n" * 250))
    assert old.read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]
    write_whole(tmp_path / ("n" * 250), "a name almost as long as names may be")
