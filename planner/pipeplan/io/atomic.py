"""Atomic writing of files; a device, FIFO or other special file is written into, never replaced."""

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeplan.core.errors import InputError
from pipeplan.core.parts import printable_path

_SHOWN = 40
"""Characters of the file's name in that of its temporary file: more could exceed the limit on names."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Write ``content`` to ``path`` atomically: concurrent readers see the old file or the new one, never a part.

    The bytes go to a temporary file in the same folder (a rename is atomic within one file system only), are synced to
    the disk, and the file is renamed in one step. A link is followed, so the file it points to is replaced. A device, a
    FIFO, a socket, and the file of standard output or standard error are written into in place.

    Raises
    ------
    InputError
        If the folder does not exist or may not be written to. No temporary file remains then.
    """
    printable_path(path)
    data = content.encode() if isinstance(content, str) else content
    try:
        if written_in_place(path):
            _into(path, data)
            return
    except (OSError, RuntimeError, ValueError) as error:
        raise _refused(path, error) from error
    with replacing(path) as part:
        part.write_bytes(data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context that yields an empty file beside ``path``, which is synced and becomes the file there behind the block.

    Raises
    ------
    InputError
        As `write_whole`. No temporary file remains then, nor after an error of the block.
    """
    printable_path(path)
    try:
        target = path.resolve()
        handle, name = _temporary(target)
        os.close(handle)
    except (OSError, RuntimeError, ValueError) as error:
        raise _refused(path, error) from error
    part = Path(name)
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.chmod(_mode(target))
        part.replace(target)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    sync_folder(target.parent)


def try_to_write(path: Path) -> None:
    """Check that `write_whole` can write here, without changing an existing file.

    Raises
    ------
    InputError
        If it cannot, or the path has control characters.
    """
    printable_path(path)
    try:
        if written_in_place(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(13, "Permission denied")
            return
        target = path.resolve()
        handle, name = _temporary(target)
        os.close(handle)
        Path(name).unlink()
    except (OSError, RuntimeError, ValueError) as error:
        raise _refused(path, error) from error


def written_in_place(path: Path) -> bool:
    """Return whether ``path`` is a special file, which must not be replaced by a regular one.

    Raises
    ------
    OSError
        If it is a folder.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(21, "it is a folder")
    return not stat.S_ISREG(found.st_mode) or _stream(found) is not None


def _stream(found: os.stat_result) -> int | None:
    """Return the descriptor of standard output or standard error if a file is one of them, else None."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), found):
                return descriptor
    return None


def _into(path: Path, data: bytes) -> None:
    descriptor = _stream(path.stat())
    sys.stdout.flush()
    with path.open("wb", buffering=0) if descriptor is None else os.fdopen(os.dup(descriptor), "wb") as file:
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]


def _temporary(target: Path) -> tuple[int, str]:
    """Create a temporary file beside ``target``; raise if the name of ``target`` itself is too long."""
    with suppress(FileNotFoundError):
        target.lstat()
    return tempfile.mkstemp(prefix=f".{target.name[:_SHOWN]}.", suffix=".part", dir=target.parent)


def _refused(path: Path, error: Exception) -> InputError:
    why = getattr(error, "strerror", None) or str(error)
    advice = "name a file in it" if isinstance(error, IsADirectoryError) else "the folder must exist and be writable"
    return InputError(f"cannot write {path}: {why}; {advice}")


def _mode(target: Path) -> int:
    """Return the permissions that an ordinary ``open`` would set: those of the old file, or what the umask allows."""
    with suppress(FileNotFoundError):
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def sync_folder(folder: Path) -> None:
    """Sync a folder, where the file system allows it, so that a new name survives a power cut."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
