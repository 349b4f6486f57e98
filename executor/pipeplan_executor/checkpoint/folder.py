"""Checkpoints in a folder: each appears complete or not at all, and ``latest`` names a complete one.

::

    runs/a/
      step-00000020/          named once all of it was on the disk
      step-00000030/
      latest                  step-00000030
      .step-00000040.part/    being written, or left by a run that died; the next save removes it
"""

import re
import shutil
from pathlib import Path

from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown
from pipeplan.io.atomic import sync_folder, write_whole

POINTER = "latest"
MANIFEST = "checkpoint.json"
"""Written after everything else: a folder that has it is complete."""
_NAME = re.compile(r"step-\d{8,}(-\d+)?")


def begin(folder: Path, step: int) -> Path:
    """Create an empty folder for the files of a checkpoint; incomplete ones of runs that died are removed.

    Raises
    ------
    InputError
        If the folder cannot be made or written to.
    """
    part = folder / f".step-{step:08d}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".step-*.part"):
            shutil.rmtree(left)
        part.mkdir()
    except OSError as error:
        raise InputError(f"cannot write checkpoints into {folder}: {error.strerror or error}") from error
    return part


def publish(part: Path, step: int, keep: int) -> Path:
    """Name a complete checkpoint, let ``latest`` point to it, and remove all except the newest ``keep``.

    A step that was saved before (by a run that resumed from an earlier one) gets a new name, so that a complete
    checkpoint exists at every moment.

    Raises
    ------
    InputError
        If it cannot be named, for instance because the folder was removed meanwhile.
    """
    try:
        return _publish(part, step, keep)
    except OSError as error:
        raise InputError(f"cannot write checkpoints into {part.parent}: {error.strerror or error}") from error


def _publish(part: Path, step: int, keep: int) -> Path:
    folder = part.parent
    sync_folder(part)
    name, again = f"step-{step:08d}", 2
    while (folder / name).exists():
        name, again = f"step-{step:08d}-{again}", again + 1
    part.rename(folder / name)
    sync_folder(folder)
    if (folder / POINTER).is_symlink():  # it could name any file, which would be replaced
        (folder / POINTER).unlink()
    write_whole(folder / POINTER, name + "\n")
    for old in sorted(whole(folder), key=_written, reverse=True)[keep:]:
        if old.name != name:
            _remove(old)
    return folder / name


def whole(folder: Path) -> list[Path]:
    """Return all complete checkpoints of a folder, by name."""
    try:
        if not folder.is_dir():
            return []
        return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name) and (path / MANIFEST).exists())
    except OSError as error:
        raise InputError(f"cannot read checkpoints of {folder}: {error.strerror or error}") from error


def check_files(folder: Path) -> None:
    """Refuse a folder with anything but regular files and folders in it: reading a pipe or a device may never end.

    Raises
    ------
    InputError
        With the first such file.
    """
    strange = [path for path in sorted(folder.iterdir()) if not (path.is_file() or path.is_dir())]
    if strange:
        raise InputError(f"{strange[0]} is no regular file, as those of a checkpoint are; remove it")


def latest(folder: str | Path) -> Path | None:
    """Return the checkpoint that was written last; None if there is none yet.

    Raises
    ------
    InputError
        If it was removed by hand, or ``latest`` is no text file.
    """
    folder = Path(folder)
    complete = whole(folder)
    if folder.is_dir():
        check_files(folder)
    try:
        name = (folder / POINTER).read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return max(complete, key=_written, default=None)  # the run died between the first checkpoint and the pointer
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {folder / POINTER}, which names the latest checkpoint: {error}") from error
    if folder / name not in complete:
        others = ", ".join(path.name for path in complete) or "none"
        raise InputError(
            f"{folder / POINTER} names {shown(name)[1:-1]}, which is gone or not whole (whole ones there: {others}); "
            "name one of them by its path, or remove the file to begin anew"
        )
    return folder / name


def resolve(path: str | Path) -> Path:
    """Return a checkpoint from its own path, or the latest of a folder.

    Raises
    ------
    InputError
        If there is none, or it is incomplete.
    """
    path = Path(path)
    if (path / MANIFEST).exists():
        return path
    found = latest(path)
    if found is not None:
        return found
    if not path.exists():
        raise InputError(f"there is no checkpoint {path}")
    if path.name.endswith(".part") or (path / ".metadata").exists():
        raise InputError(f"{path} is not whole: the run died while it wrote it; use the latest of {path.parent}")
    raise InputError(f"{path} holds no whole checkpoint: it has neither {MANIFEST} nor {POINTER}")


def _written(checkpoint: Path) -> tuple[int, str]:
    return (checkpoint / MANIFEST).stat().st_mtime_ns, checkpoint.name


def _remove(checkpoint: Path) -> None:
    """Rename a checkpoint, then remove its files: no incomplete one is ever visible."""
    gone = checkpoint.with_name(f".{checkpoint.name}.part")
    checkpoint.replace(gone)
    shutil.rmtree(gone, ignore_errors=True)
