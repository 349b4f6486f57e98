"""Folder of a run on this machine, in the system's temporary folder.

::

    pipeplan-run-x7/   lock         held by the launcher while it lives
                       task         the function and its arguments
                       store        where ranks meet
                       pulse1       of each rank: place in the user's code, rewritten every half second
                       value        result of rank 0
                       error1.json  error of a rank

The launcher removes it. Where the launcher is killed, its ranks do; what is left of a launcher that was killed before
it had any, the next run removes.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "pipeplan-run-"
LOCK = "lock"


@contextmanager
def run_folder() -> Iterator[Path]:
    """Context with a new folder, readable by this user only."""
    root = Path(tempfile.gettempdir())
    for left in root.glob(f"{PREFIX}*"):
        with suppress(OSError):
            _remove_abandoned(left)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
    try:
        with (folder / "unlocked").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / "unlocked").rename(folder / LOCK)  # a file of this name is locked while its launcher lives
            yield folder
    finally:
        remove(folder)


def _remove_abandoned(folder: Path) -> None:
    if folder.lstat().st_uid != os.getuid():
        return
    with (folder / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its launcher lives
        remove(folder)


def remove(folder: Path) -> None:
    """Remove a run's folder, also while a rank still writes into it, and torch's cache beside it if that is empty."""
    _remove_empty_cache(folder.parent)
    for _ in range(3):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


def _remove_empty_cache(root: Path) -> None:
    """Remove the folder that torch makes when it is imported, and makes again when it compiles something."""
    for cache in root.glob("torchinductor_*"):
        with suppress(OSError):  # it has files
            if cache.lstat().st_uid == os.getuid():
                cache.rmdir()
