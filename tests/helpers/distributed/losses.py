"""Workers for the tests of lost ranks, importable by name in other processes."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from pipeplan.core.errors import InputError
from pipeplan_executor import launch


def misbehaving(how: str, culprit: int) -> None:
    """Let one rank raise, be killed, stop or be busy otherwise, while the others wait for it."""
    if dist.get_rank() == culprit:
        misbehave(how)
    dist.recv(torch.zeros(1), culprit)


def misbehave(how: str) -> None:
    """Fail in one of four ways."""
    if how == "raise":
        raise TimeoutError("the data timed out")
    if how == "busy":
        time.sleep(600)
    time.sleep(0.3)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[how])


def failing_at_first(folder: str, failures: tuple[str, ...]) -> int:
    """Fail in these ways, one per attempt, then return the number of attempts."""
    attempts = Path(folder) / f"attempts{dist.get_rank()}"
    number = len(attempts.read_text()) if attempts.exists() else 0
    attempts.write_text("x" * (number + 1))
    dist.barrier()
    if number < len(failures) and dist.get_rank() == 1:
        if failures[number] == "input":
            raise InputError("there is no such file")
        misbehave(failures[number])
    dist.barrier()
    return number + 1


def returning_what_stays() -> object:
    """Object that cannot be sent to another process."""
    return lambda: None


if __name__ == "__main__":  # arguments: the way in which one of two ranks fails, and the timeout
    launch(misbehaving, 2, sys.argv[1], 1, timeout=float(sys.argv[2]))
