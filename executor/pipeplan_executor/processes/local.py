"""Ranks as processes of this machine: started together, watched, ended together when one is lost.

A rank that dies is noticed by torch's elastic agent. A rank that stands still has no pulse and is killed. Ranks that
wait for each other run into the process group's timeout. Either way the call ends with one `RunError` that names the
first cause.
"""

import json
import logging
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeplan.core.errors import InputError
from pipeplan.frontend.profile.allocator import allocator_settings, inherited
from pipeplan_executor.processes.devices import cores
from pipeplan_executor.processes.rank import PULSE, RunError, worker

PATIENCE = 0.6
"""The part of the timeout after which a rank without pulse is killed: earlier than its peers give up waiting for it."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def start_local(
    function: Callable[..., Any], world: int, arguments: tuple[Any, ...], timeout: float, device: str
) -> Any:
    """Call a function on so many new processes that form a process group; the value of rank 0.

    Raises
    ------
    RunError
        Naming the rank that failed, and how.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the one error is ours to tell
    threads = max(1, cores() // world)
    settings = {"OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo", **allocator_settings()}
    with tempfile.TemporaryDirectory(prefix="pipeplan-run-") as name:
        folder = Path(name)
        task = folder / "task"
        task.write_bytes(_packed((function, arguments)))
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=world,
            run_id=f"pipeplan-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            max_restarts=0,
            start_method="spawn",
            monitor_interval=0.1,
        )
        with Watch(folder, world, timeout) as watch, own_signals(), inherited(settings):
            try:
                elastic_launch(config, worker)(str(task), name, timeout, device, os.getpid())
            except ChildFailedError as error:
                raise cause(folder, error.failures, watch, timeout) from None
            except SignalException as error:
                if error.sigval == signal.SIGINT:
                    raise KeyboardInterrupt from None
                raise RunError(f"ended by {error.sigval.name}, on every rank", again=False) from None
        return pickle.loads((folder / "value").read_bytes())


def _packed(task: object) -> bytes:
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"ranks are processes of their own, and what they are to run cannot be sent there: {error}; name a model "
            "as 'module:function', and define functions and classes at the top level of a module"
        ) from error


@contextmanager
def own_signals() -> Iterator[None]:
    """Torch's agent answers to signals while it runs; afterwards they mean what they meant before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Watch:
    """Looks at the pulse of every rank, and kills one that has none while others have, or has none any more.

    A silence is counted in looks, not read off the clock: where the launcher was stopped too, all was silent.

    Parameters
    ----------
    folder : Path
        Where ranks leave their pulse.
    world : int
    timeout : float
        Seconds; a rank that had a pulse may be silent for `PATIENCE` of them, one that never had one for all.

    Attributes
    ----------
    killed : list of (int, str)
        Ranks, and where they were last.
    heard : dict
        For each rank when that was last, and where it was then.
    """

    def __init__(self, folder: Path, world: int, timeout: float) -> None:
        self.killed: list[tuple[int, str]] = []
        self.heard = dict.fromkeys(range(world), (0.0, ""))
        self._folder = folder
        self._looks, self._first_looks = (max(3, round(part * timeout / PULSE)) for part in (PATIENCE, 1))
        self._silent = dict.fromkeys(range(world), 0)
        self._pulses: dict[int, int] = {}
        self._strangers = {child.pid for child in multiprocessing.active_children()}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(PULSE):
            for rank in self.heard:
                if self._beats(rank):
                    self._silent[rank] = 0
                elif self._pulses:
                    self._silent[rank] += 1
                    if self._silent[rank] == (self._looks if rank in self._pulses else self._first_looks):
                        self._kill(rank)

    def _beats(self, rank: int) -> bool:
        pulse = self._folder / f"pulse{rank}"
        try:
            last = pulse.stat().st_mtime_ns
            if self._pulses.get(rank) == last:
                return False
            self._pulses[rank] = last
            self.heard[rank] = time.time(), pulse.read_text()
        except FileNotFoundError:
            return False
        return True

    def _kill(self, rank: int) -> None:
        """A rank that never had a pulse did not tell its process either: it is one of those that nobody told."""
        told = {int(path.read_text() or 0) for path in self._folder.glob("pid*")}
        own = self._folder / f"pid{rank}"
        if own.exists():
            processes = {int(own.read_text())}
        else:
            processes = {child.pid for child in multiprocessing.active_children() if child.pid} - told - self._strangers
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if processes:
            self.killed.append((rank, self.heard[rank][1]))


def cause(folder: Path, failures: dict[int, Any], watch: Watch, timeout: float) -> RunError:
    """The first error that is no other one's consequence."""
    notes = {note["rank"]: note for note in (json.loads(path.read_text()) for path in folder.glob("error*.json"))}
    if watch.killed:
        rank, place = watch.killed[0]
        silent = timeout if watch.heard[rank][0] == 0 else PATIENCE * timeout
        return RunError(f"rank {rank} stood still for {silent:.0f} s{_at(place)} and was killed; {_END}")
    for rank, failure in sorted(failures.items()):
        if rank not in notes and failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
            name = signal.Signals(-failure.exitcode).name
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
        return _unanswered(notes, watch, timeout)
    rank, failure = min(failures.items(), key=lambda item: item[1].timestamp)
    return RunError(f"rank {rank} ended with exit code {failure.exitcode}; {_END}")


_END = "the run ended on every rank"


def _unanswered(notes: dict[int, dict[str, Any]], watch: Watch, timeout: float) -> RunError:
    """Ranks waited in vain: for one that has no pulse, for one that is busy with something else, or for each other."""
    first = min(notes.values(), key=lambda note: note["time"])
    for rank, (heard, place) in watch.heard.items():
        if rank not in notes and first["time"] - heard > 4 * PULSE:
            return RunError(f"rank {rank} stood still{_at(place)} while others waited {timeout:.0f} s for it; {_END}")
    for rank, (_, place) in watch.heard.items():
        if rank not in notes and place:
            return RunError(f"rank {rank} was busy{_at(place)} while others waited {timeout:.0f} s for it; {_END}")
    return RunError(f"rank {first['rank']} failed: {first['error']}")


def _at(place: str) -> str:
    return f" at {place}" if place else ""
