"""Process of a rank: process group, heartbeat, and outcome of its function."""

import atexit
import json
import os
import pickle
import re
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeplan.cli.streams import Stream
from pipeplan.core.collector import without_collector
from pipeplan.core.errors import PipeplanError
from pipeplan_executor.processes.home import remove

PULSE = 0.5
"""Seconds between two heartbeats of a rank."""
START_UP = 60.0
"""Least seconds that ranks of one machine wait for one another to start: on a busy one, libraries load for long."""
_PACKAGE = Path(__file__).parent.parent
_PYTHON = sysconfig.get_path("stdlib")


def place() -> str:
    """Return the main thread's place in the user's code, like ``'my_data.py:33 in draw'``.

    It is empty while the thread runs this package or waits for other ranks.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        ours = _PACKAGE in file.parents and "zoo" not in file.parts
        if ours or "torch/distributed" in file.as_posix():
            return ""
        if file.suffix == ".py" and "site-packages" not in file.parts and not file.is_relative_to(_PYTHON):
            return f"{file.name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


PEER_WAIT = 1.0
"""Seconds that a rank waits before it ends after losing a peer, so that the launcher sees the peer's end first."""
_LOST_PEER = ("closed by peer", "timed out", "timeout", "broken pipe", "connect")
"""Parts of torch's messages about errors that another rank caused."""


class RunError(PipeplanError):
    """Early end of a run; the text names the rank and its error.

    Attributes
    ----------
    again : bool
        True if another attempt may succeed.

    Examples
    --------
    >>> pipeplan_executor.RunError("rank 1 was killed by SIGKILL").again
    True
    """

    def __init__(self, text: str, again: bool = True) -> None:
        super().__init__(text)
        self.again = again


def as_rank(
    function: Callable[..., Any], arguments: tuple[Any, ...], timeout: float, device: str, store: Path | None = None
) -> Any:
    """Join the process group that the environment describes, call the function, leave the group.

    Parameters
    ----------
    store : Path, optional
        The file where the ranks of one machine meet.

    Raises
    ------
    RunError
        If another rank caused the error.
    """
    import torch.distributed as dist

    from pipeplan_executor.processes.devices import take
    from pipeplan_executor.processes.rendezvous import join, join_local

    backend = "cpu:gloo,cuda:nccl" if take(device).type == "cuda" else "gloo"
    try:
        if store is None:
            join(backend, timeout)
        else:
            join_local(backend, timeout, store, max(timeout, START_UP))
        return function(*arguments)
    except RuntimeError as error:  # those of torch.distributed are of this kind; a user's own timeouts are not
        if any(sign in str(error).lower() for sign in _LOST_PEER):
            raise RunError(
                f"rank {os.environ['RANK']} lost a peer or waited {timeout:.0f} s for it: {_first(error)}"
            ) from error
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _first(error: BaseException) -> str:
    line = str(error).strip().partition("\n")[0]
    return re.sub(r"^\[[^]]*\] ", "", line)[:300]  # without the place in torch's source


def worker(environment: Mapping[str, str], folder: str, timeout: float, device: str, launcher: int) -> None:
    """Run the task of a local rank while the process ``launcher`` exists, and report to it through files.

    `pipeplan_executor.processes.home` lists the files.
    """
    signal.signal(signal.SIGINT, lambda *_: None)  # the launcher ends its ranks
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.environ.update(environment)
    sys.stdout, sys.stderr = Stream(sys.stdout, 1), Stream(sys.stderr, 2)
    rank, home = int(environment["RANK"]), Path(folder)
    succeeded: list[bool] = []
    atexit.register(lambda: leave() if succeeded else None)  # registered first, so that it is called last

    with without_collector():  # what is imported stays
        import torch.distributed  # noqa: F401  before the first pulse, as loading libraries would delay the next ones

    threading.Thread(target=_pulse, args=(home / f"pulse{rank}", launcher), daemon=True).start()
    try:
        with without_collector():
            function, arguments = pickle.loads((home / "task").read_bytes())
        value = as_rank(function, arguments, timeout, device, home / "store")
        if rank == 0:
            (home / "value").write_bytes(pickle.dumps(value))
    except BaseException as error:
        consequence, explained = isinstance(error, RunError), isinstance(error, PipeplanError)
        note = {
            "rank": rank,
            "time": time.time(),
            "consequence": consequence,
            "again": consequence or not explained,
            "error": str(error) if explained else f"{type(error).__name__}: {error}",
            "trace": "" if explained else traceback.format_exc(),
        }
        part = home / f"error{rank}.part"
        with suppress(OSError):  # the launcher is gone, and with it the folder; or the disk is full
            part.write_text(json.dumps(note))
            part.rename(home / f"error{rank}.json")
        if consequence:
            time.sleep(PEER_WAIT)
        if os.getppid() != launcher:
            remove(home)
        os._exit(1)  # at once: neither the interpreter's exit nor a peer's can delay it
    succeeded.append(True)


def leave() -> None:
    """End the process at once, with success.

    Otherwise Python unloads the modules of torch for seconds, and remaining threads of torch may abort a process that
    has completed its work.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _pulse(path: Path, launcher: int) -> None:
    part = path.with_suffix(".part")
    while True:
        if os.getppid() != launcher:
            end_orphan(path.parent)
        try:
            part.write_text(place())
            part.replace(path)
        except FileNotFoundError:  # another rank has removed the folder, or the launcher, which ends this rank
            continue
        except OSError:  # the disk is full, which is no reason to be found dead
            with suppress(OSError):
                os.utime(path)
        finally:
            time.sleep(PULSE)


def end_orphan(folder: Path) -> None:
    """End this rank at once, as its launcher is gone, and remove the run's folder."""
    remove(folder)
    os._exit(1)
