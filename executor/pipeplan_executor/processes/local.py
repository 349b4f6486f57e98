"""Ranks as processes of this machine: started together, monitored, ended together when one is lost.

Ranks meet through a file of the run's folder, and exchange tensors over the loopback interface, so nothing that other
machines reach listens. A rank that stands still has no pulse and is killed (`Watch`). Ranks that wait for each other
reach the process group's timeout. In each case the call ends with one `RunError` that names the first cause.
"""

import json
import multiprocessing
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pipeplan.core.errors import InputError
from pipeplan.frontend.profile.allocator import allocator_settings, inherited
from pipeplan_executor.processes.devices import cores
from pipeplan_executor.processes.home import run_folder
from pipeplan_executor.processes.rank import PULSE, RunError, worker
from pipeplan_executor.processes.watch import PATIENCE, Watch, first_patience

GRACE = 5.0
"""Seconds that ranks have to end after SIGTERM, before they are killed."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class _Signalled(BaseException):
    """A signal other than Ctrl-C ends the run."""

    def __init__(self, number: int) -> None:
        self.name = signal.Signals(number).name


def start_local(
    function: Callable[..., Any], world: int, arguments: tuple[Any, ...], timeout: float, device: str
) -> Any:
    """Call a function on ``world`` new processes that form a process group; return the value of rank 0.

    Raises
    ------
    RunError
        With the rank that failed, and its error.
    """
    packed = _packed((function, arguments))
    settings = {"OMP_NUM_THREADS": str(max(1, cores() // world)), **allocator_settings()}
    try:
        with signals_raised(), run_folder() as folder:
            (folder / "task").write_bytes(packed)
            ranks: list[BaseProcess] = []
            try:
                with inherited(settings):
                    _start(ranks, world, folder, timeout, device)
                with Watch(folder, [rank.pid or 0 for rank in ranks], timeout) as watch:
                    failures = _await(ranks)
                    _end(ranks)
                if failures:
                    raise cause(folder, failures, watch, timeout)
                return pickle.loads((folder / "value").read_bytes())
            finally:
                _end(ranks)
    except _Signalled as signalled:
        raise RunError(f"ended by {signalled.name}, on every rank", again=False) from None


def _packed(task: object) -> bytes:
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"ranks are separate processes, and their task cannot be sent to them: {error}; name a model "
            "as 'module:function', and define functions and classes at the top level of a module"
        ) from error


def _start(ranks: list[BaseProcess], world: int, folder: Path, timeout: float, device: str) -> None:
    """Start all ranks, and append each to the list as soon as it runs."""
    context = multiprocessing.get_context("spawn")
    interface = loopback()
    for number in range(world):
        environment = {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            "GLOO_SOCKET_IFNAME": interface,  # whatever the user has set for runs on several machines
            "NCCL_SOCKET_IFNAME": interface,
        }
        rank = context.Process(target=worker, args=(environment, str(folder), timeout, device, os.getpid()))
        # Ctrl-C in a terminal reaches ranks too; it stays blocked until `worker` ignores it, as this process ends them
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            rank.start()
            ranks.append(rank)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def loopback() -> str:
    """Return the name of the loopback interface: ``lo``, or ``lo0``."""
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")


def _await(ranks: list[BaseProcess]) -> dict[int, int]:
    """Wait until all ranks have ended, or one has failed; return the exit codes of those that failed."""
    running = ranks
    failures: dict[int, int] = {}
    while running and not failures:
        wait([rank.sentinel for rank in running])
        running = [rank for rank in running if rank.exitcode is None]
        failures = {number: rank.exitcode for number, rank in enumerate(ranks) if rank.exitcode}
    return failures


def _end(ranks: list[BaseProcess]) -> None:
    """End the ranks that still run."""
    for rank in ranks:
        rank.terminate()
    deadline = time.monotonic() + GRACE
    for rank in ranks:
        rank.join(max(deadline - time.monotonic(), 0))
        rank.kill()
        rank.join()


@contextmanager
def signals_raised() -> Iterator[None]:
    """Context in which the first signal that would end this process raises, and later ones are ignored.

    Signals that are ignored, or that the calling program handles, are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    caught = [number for number, handler in before.items() if handler in (signal.SIG_DFL, signal.default_int_handler)]

    def handle(number: int, _: object) -> None:
        for each in caught:
            signal.signal(each, signal.SIG_IGN)  # ranks are being ended, and their folder removed
        raise KeyboardInterrupt if number == signal.SIGINT else _Signalled(number)

    try:
        for number in caught:
            signal.signal(number, handle)
        yield
    finally:
        for number in caught:
            signal.signal(number, before[number])


def cause(folder: Path, failures: Mapping[int, int], watch: Watch, timeout: float) -> RunError:
    """Return the first error that is not a consequence of another one.

    Parameters
    ----------
    failures : mapping
        Exit codes of the ranks that failed first.
    """
    # each rank's own note of its error; a killed rank has none
    notes = {note["rank"]: note for note in (json.loads(path.read_text()) for path in folder.glob("error*.json"))}
    if watch.killed:
        rank, place = watch.killed[0]
        silent = first_patience(timeout) if watch.last_pulse[rank][0] == 0 else PATIENCE * timeout
        return RunError(f"rank {rank} stood still for {silent:.0f} s{_at(place)} and was killed; {_END}")
    for rank, code in sorted(failures.items()):
        if rank not in notes and code < 0 and code != -signal.SIGTERM:
            name = signal.Signals(-code).name
            memory = " (so does the system when memory runs out)" if name == "SIGKILL" else ""
            return RunError(f"rank {rank} was killed by {name}{memory}; {_END}")
    own = [note for note in notes.values() if not note["consequence"]]
    if own:
        first = min(own, key=lambda note: note["time"])
        failed = RunError(f"rank {first['rank']} failed: {first['error']}", again=first["again"])
        if first["trace"]:
            failed.add_note(first["trace"])
        return failed
    if notes:
        return _timeout_cause(notes, watch, timeout)
    rank, code = min(failures.items())
    return RunError(f"rank {rank} ended with exit code {code}; {_END}")


_END = "the run ended on every rank"


def _timeout_cause(notes: dict[int, dict[str, Any]], watch: Watch, timeout: float) -> RunError:
    """Return the cause of a timeout: a rank without pulse, a rank busy in the user's code, or a mutual wait."""
    first = min(notes.values(), key=lambda note: note["time"])
    for rank, (last_pulse, place) in watch.last_pulse.items():
        if rank not in notes and first["time"] - last_pulse > 4 * PULSE:
            return RunError(f"rank {rank} stood still{_at(place)} while others waited {timeout:.0f} s for it; {_END}")
    for rank, (_, place) in watch.last_pulse.items():
        if rank not in notes and place:
            return RunError(f"rank {rank} was busy{_at(place)} while others waited {timeout:.0f} s for it; {_END}")
    return RunError(f"rank {first['rank']} failed: {first['error']}")


def _at(place: str) -> str:
    return f" at {place}" if place else ""
