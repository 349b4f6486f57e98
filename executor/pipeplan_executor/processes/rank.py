"""A rank's process around the function that it was started for: process group, signs of life, and its outcome."""

import atexit
import json
import os
import pickle
import re
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeplan.core.errors import PipeplanError

PULSE = 0.5
"""Seconds between two signs of life of a rank."""
_PACKAGE = Path(__file__).parent.parent
_PYTHON = sysconfig.get_path("stdlib")


def place() -> str:
    """``'my_data.py:33 in draw'``: where the main thread is; empty if it is at work here, or waits for other ranks."""
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


COURTESY = 1.0
"""Seconds that a rank which lost a peer waits before it ends, so that the launcher sees the peer's end first."""
_SIGNS = ("closed by peer", "timed out", "timeout", "broken pipe", "connect")
"""What torch says where another rank is to blame."""


class RunError(PipeplanError):
    """A run ended before its time; the text names the rank and its error.

    Attributes
    ----------
    again : bool
        Whether another attempt may go better.
    """

    def __init__(self, text: str, again: bool = True) -> None:
        super().__init__(text)
        self.again = again


def as_rank(function: Callable[..., Any], arguments: tuple[Any, ...], timeout: float, device: str) -> Any:
    """Join the process group that the environment tells of, call the function, leave the group.

    Raises
    ------
    RunError
        If another rank is to blame.
    """
    import torch.distributed as dist

    from pipeplan_executor.processes.devices import take
    from pipeplan_executor.processes.meeting import join

    backend = "cpu:gloo,cuda:nccl" if take(device).type == "cuda" else "gloo"
    try:
        join(backend, timeout)
        return function(*arguments)
    except RuntimeError as error:  # those of torch.distributed are of this kind; a user's own timeouts are not
        if any(sign in str(error).lower() for sign in _SIGNS):
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


def worker(task: str, folder: str, timeout: float, device: str, launcher: int) -> None:
    """What a local rank runs, as long as the process ``launcher`` is there, which knows by files how it fares.

    ::

        pid1     its process          pulse1        rewritten every half a second: where in the user's code it is
        value    what rank 0 returns  error1.json   how it failed
    """
    rank, home = int(os.environ["RANK"]), Path(folder)
    succeeded: list[bool] = []
    atexit.register(lambda: leave() if succeeded else None)  # as the first, so that it is the last to be called

    import torch.distributed  # noqa: F401  ahead of the pulse, which loading libraries would hold up

    (home / f"pid{rank}").write_text(str(os.getpid()))
    threading.Thread(target=_pulse, args=(home / f"pulse{rank}", launcher), daemon=True).start()
    try:
        function, arguments = pickle.loads(Path(task).read_bytes())
        value = as_rank(function, arguments, timeout, device)
        if rank == 0:
            (home / "value").write_bytes(pickle.dumps(value))
    except BaseException as error:
        consequence, told = isinstance(error, RunError), isinstance(error, PipeplanError)
        note = {
            "rank": rank,
            "time": time.time(),
            "consequence": consequence,
            "again": consequence or not told,
            "error": str(error) if told else f"{type(error).__name__}: {error}",
            "trace": "" if told else traceback.format_exc(),
        }
        part = home / f"error{rank}.part"
        part.write_text(json.dumps(note))
        part.rename(home / f"error{rank}.json")
        if consequence:
            time.sleep(COURTESY)
        os._exit(1)  # neither the interpreter's exit nor a peer's can hold this rank back any more
    succeeded.append(True)


def leave() -> None:
    """Be gone, successfully.

    Without this, Python takes modules apart for seconds before a process ends that has loaded torch, and threads of
    torch that are still there then may abort a process that has done all its work.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _pulse(path: Path, launcher: int) -> None:
    part = path.with_suffix(".part")
    while True:
        if os.getppid() != launcher:
            os._exit(1)  # nobody is left to end this rank
        part.write_text(place())
        part.replace(path)
        time.sleep(PULSE)
