"""Lock of a folder of checkpoints: one run saves into it at a time.

The system frees the lock when the process that holds it ends, however it ends; the file stays.
"""

import errno
import fcntl
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import IO

from pipeplan.core.errors import InputError

LOCK = ".lock"
_held: dict[Path, IO[str]] = {}


def hold(folder: Path) -> None:
    """Lock a folder, which is made if it is absent, until `release_all` or the end of this process.

    Raises
    ------
    InputError
        If another process holds it, or the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = folder.resolve()
        if place in _held:
            return
        file = _opened(place / LOCK)
    except OSError as error:
        raise InputError(f"cannot write checkpoints into {folder}: {error.strerror or error}") from error
    try:
        _take(file, folder)
    except InputError:
        file.close()
        raise
    with suppress(OSError):  # a full disk is another error's matter
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}")
        file.flush()
    _held[place] = file


def check_free(folder: Path) -> None:
    """Refuse a folder that another process holds.

    Raises
    ------
    InputError
        With the process.
    """
    if folder.resolve() not in _held and (folder / LOCK).exists():
        with suppress(OSError), _opened(folder / LOCK) as file:
            _take(file, folder)


def release_all() -> None:
    """Free the locks of this process."""
    while _held:
        _held.popitem()[1].close()


def _opened(path: Path) -> IO[str]:
    """Open a lock's file, but no link in its place, which could name any file."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+")


def _take(file: IO[str], folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            return  # this file system has no locks
        file.seek(0)
        holder = file.read().strip() or "another process"
        raise InputError(
            f"another run ({holder}) saves its checkpoints into {folder}; wait for its end, or name another folder"
        ) from error
