"""Ranks as processes of this machine: started together, monitored, ended together when one is lost.

Torch's elastic agent detects a rank that dies. A rank that stands still has no pulse and is killed. Ranks that wait for
each other reach the process group's timeout. In each case the call ends with one `RunError` that names the first
cause.
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
"""Fraction of the timeout after which a rank without pulse is killed, before its peers' timeout."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def start_local(
    function: Callable[..., Any], world: int, arguments: tuple[Any, ...], timeout: float, device: str
) -> Any:
    """Call a function on ``world`` new processes that form a process group; return the value of rank 0.

    Raises
    ------
    RunError
        With the rank that failed, and its error.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the RunError replaces their reports
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
            logs_specs=DefaultLogsSpecs(log_dir=name),  # torch's own folder would stay behind
        )
        with Watch(folder, world, timeout) as watch, restored_signals(), inherited(settings):
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
            f"ranks are separate processes, and their task cannot be sent to them: {error}; name a model "
            "as 'module:function', and define functions and classes at the top level of a module"
        ) from error


@contextmanager
def restored_signals() -> Iterator[None]:
    """Context that restores signal handlers at its end, since torch's agent replaces them."""
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
    """Monitor that kills a rank whose pulse stops, or never starts while others have one.

    Silence is counted in polls, not in clock time, since a stopped launcher would see all ranks silent.

    Parameters
    ----------
    folder : Path
        Folder of the ranks' pulse files.
    world : int
    timeout : float
        Seconds; a rank that had a pulse may be silent for the fraction `PATIENCE` of them, other ranks for all.

    Attributes
    ----------
    killed : list of (int, str)
        Ranks, and their last known places in the user's code.
    last_pulse : dict
        Time of each rank's last pulse, and its place in the user's code.
    """

    def __init__(self, folder: Path, world: int, timeout: float) -> None:
        self.killed: list[tuple[int, str]] = []
        self.last_pulse = dict.fromkeys(range(world), (0.0, ""))
        self._folder = folder
        self._looks, self._first_looks = (max(3, round(part * timeout / PULSE)) for part in (PATIENCE, 1))
        self._silent = dict.fromkeys(range(world), 0)
        self._pulses: dict[int, int] = {}
        self._other_children = {child.pid for child in multiprocessing.active_children()}
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
            for rank in self.last_pulse:
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
            self.last_pulse[rank] = time.time(), pulse.read_text()
        except FileNotFoundError:
            return False
        return True

    def _kill(self, rank: int) -> None:
        """Kill a rank. Without a heartbeat its process is unknown: kill all children that registered for no rank."""
        registered = {int(path.read_text() or 0) for path in self._folder.glob("pid*")}
        own = self._folder / f"pid{rank}"
        if own.exists():
            processes = {int(own.read_text())}
        else:
            processes = (
                {child.pid for child in multiprocessing.active_children() if child.pid}
                - registered
                - self._other_children
            )
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if processes:
            self.killed.append((rank, self.last_pulse[rank][1]))


def cause(folder: Path, failures: dict[int, Any], watch: Watch, timeout: float) -> RunError:
    """Return the first error that is not a consequence of another one."""
    # each rank's own note of its error; a killed rank has none
    notes = {note["rank"]: note for note in (json.loads(path.read_text()) for path in folder.glob("error*.json"))}
    if watch.killed:
        rank, place = watch.killed[0]
        silent = timeout if watch.last_pulse[rank][0] == 0 else PATIENCE * timeout
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
        return _timeout_cause(notes, watch, timeout)
    rank, failure = min(failures.items(), key=lambda item: item[1].timestamp)
    return RunError(f"rank {rank} ended with exit code {failure.exitcode}; {_END}")


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
