"""A file is written whole or not at all."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from pipeplan.errors import InputError


def write_whole(path: Path, content: str | bytes) -> None:
    """Put ``content`` at ``path``; whoever reads it meanwhile sees the old file or the new one, never a part.

    The bytes go to a temporary file in the same folder (a rename is atomic within one file system only), are forced
    to the disk, and take the name in one step. A link is followed, so the file it points to is replaced.

    Raises
    ------
    InputError
        If the folder does not exist or may not be written to. Nothing is left behind then.
    """
    target = path.resolve()
    data = content.encode() if isinstance(content, str) else content
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; the folder must exist and be writable") from error
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.chmod(_mode(target))
        part.replace(target)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    sync_folder(target.parent)


def _mode(target: Path) -> int:
    """Permissions as an ordinary ``open`` would leave them: those of the file replaced, or what the umask allows."""
    with suppress(FileNotFoundError):
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def sync_folder(folder: Path) -> None:
    """Make the new name survive a power cut, where the file system lets a folder be synced."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
