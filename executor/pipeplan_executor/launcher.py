"""Starts a plan's ranks on this machine, or joins those that torchrun or Slurm started; ends them all when one fails.

::

    RANK and WORLD_SIZE set       torchrun: this process is one rank
    SLURM_PROCID, SLURM_NTASKS    Slurm: the same, translated
    neither                       elastic launch of one local process a rank

Locally a watch looks at every rank's pulse. A rank that dies is noticed by the launcher; a rank that stands still has
no pulse and is killed; ranks that wait for each other run into the process group's timeout. Either way the call ends
with one `RunError` that names the first cause.
"""

import datetime
import json
import logging
import os
import pickle
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeplan.errors import PipeplanError
from pipeplan.profile.allocator import workers_allocator

PULSE = 0.5
"""Seconds between two signs of life of a rank."""
COURTESY = 1.0
"""Seconds that a rank which lost a peer waits before it ends, so that the launcher sees the peer's end first."""


class RunError(PipeplanError):
    """A run ended before its time; the text names the rank and its error."""


def launch(function: Callable[..., Any], world: int, *arguments: Any, timeout: float = 60.0) -> Any:
    """Call ``function(*arguments)`` on ``world`` ranks that form a process group; the value of rank 0.

    Parameters
    ----------
    function : callable
        Importable by name, as are the arguments' types: it is called in other processes.
    timeout : float
        Seconds within which a rank that died, hangs or waits for nothing ends the run everywhere.

    Raises
    ------
    RunError
        If a rank fails, or the launcher started another number of ranks than ``world``.
    """
    started = joined_world()
    if started is None:
        return _local(function, world, arguments, timeout)
    if started != world:
        raise RunError(
            f"the plan has {world} ranks, but the launcher started {started} processes; start {world}, or solve for "
            f"{started} devices"
        )
    return _as_rank(function, arguments, timeout, "env://")


def joined_world() -> int | None:
    """How many ranks somebody else has started, with the environment that torch.distributed reads; None if nobody."""
    environment = os.environ
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return int(environment["WORLD_SIZE"])
    if "SLURM_PROCID" in environment and int(environment.get("SLURM_NTASKS", "1")) > 1:
        host = environment.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
        environment.update(
            RANK=environment["SLURM_PROCID"],
            WORLD_SIZE=environment["SLURM_NTASKS"],
            LOCAL_RANK=environment.get("SLURM_LOCALID", "0"),
        )
        environment.setdefault("MASTER_ADDR", host)
        environment.setdefault("MASTER_PORT", str(20_000 + int(environment.get("SLURM_JOB_ID", "0")) % 20_000))
        return int(environment["WORLD_SIZE"])
    return None


def _as_rank(function: Callable[..., Any], arguments: tuple[Any, ...], timeout: float, method: str) -> Any:
    import torch
    import torch.distributed as dist

    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, init_method=method, timeout=datetime.timedelta(seconds=timeout))
    try:
        return function(*arguments)
    except PipeplanError:
        raise
    except (RuntimeError, dist.DistError) as error:
        if lost_a_peer(error):
            raise RunError(
                f"rank {dist.get_rank()} lost a peer or waited {timeout:.0f} s for it: {_first(error)}"
            ) from error
        raise
    finally:
        dist.destroy_process_group()


def lost_a_peer(error: BaseException) -> bool:
    """Whether an error is the consequence of another rank's."""
    signs = ("closed by peer", "timed out", "timeout", "connection reset", "broken pipe", "connect", "lost a peer")
    return any(sign in str(error).lower() for sign in signs)


def _first(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300]


def _worker(task: str, folder: str, timeout: float) -> None:
    """What a local rank runs: its pulse, the function, and what became of it."""
    rank = int(os.environ["RANK"])
    home = Path(folder)
    (home / f"pid{rank}").write_text(str(os.getpid()))
    threading.Thread(target=_pulse, args=(home / f"pulse{rank}",), daemon=True).start()
    function, arguments = pickle.loads(Path(task).read_bytes())
    try:
        value = _as_rank(function, arguments, timeout, "env://")
    except BaseException as error:
        consequence = isinstance(error, RunError) or lost_a_peer(error)
        text = str(error) if isinstance(error, PipeplanError) else f"{type(error).__name__}: {error}"
        note = {"rank": rank, "time": time.time(), "consequence": consequence, "error": text}
        note["trace"] = traceback.format_exc()
        part = home / f"error{rank}.part"
        part.write_text(json.dumps(note))
        part.rename(home / f"error{rank}.json")
        if consequence:
            time.sleep(COURTESY)
        os._exit(1)  # neither the interpreter's exit nor a peer's can hold this rank back any more
    if rank == 0:
        (home / "value").write_bytes(pickle.dumps(value))


def _pulse(path: Path) -> None:
    while True:
        path.touch()
        time.sleep(PULSE)


def _local(function: Callable[..., Any], world: int, arguments: tuple[Any, ...], timeout: float) -> Any:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the one error is ours to tell
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // world)))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory(prefix="pipeplan-run-") as folder:
        task = Path(folder) / "task"
        task.write_bytes(pickle.dumps((function, arguments)))
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
        done = threading.Event()
        still: list[int] = []
        watch = threading.Thread(target=_watch, args=(Path(folder), world, timeout, done, still), daemon=True)
        watch.start()
        try:
            with workers_allocator():
                elastic_launch(config, _worker)(str(task), folder, timeout)
        except ChildFailedError as error:
            raise RunError(_cause(Path(folder), error, still, timeout)) from None
        finally:
            done.set()
        return pickle.loads((Path(folder) / "value").read_bytes())


def _watch(folder: Path, world: int, timeout: float, done: threading.Event, still: list[int]) -> None:
    """Kill a rank that had a pulse and has none any more."""
    while not done.wait(PULSE):
        for rank in range(world):
            pulse, pid = folder / f"pulse{rank}", folder / f"pid{rank}"
            try:
                silent = time.time() - pulse.stat().st_mtime
                if silent > timeout and rank not in still:
                    still.append(rank)
                    os.kill(int(pid.read_text()), signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError):
                continue


def _cause(folder: Path, error: Any, still: list[int], timeout: float) -> str:
    """The first error that is no other one's consequence."""
    if still:
        return f"rank {still[0]} stood still for {timeout:.0f} s and was killed; the run ended on every rank"
    notes = [json.loads(path.read_text()) for path in folder.glob("error*.json")]
    told = {note["rank"] for note in notes}
    for rank, failure in sorted(error.failures.items()):
        if rank not in told and failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
            name = signal.Signals(-failure.exitcode).name
            return f"rank {rank} was killed by {name}; the run ended on every rank"
    own = [note for note in notes if not note["consequence"]] or notes
    if own:
        first = min(own, key=lambda note: note["time"])
        return f"rank {first['rank']} failed: {first['error']}"
    rank, failure = min(error.failures.items(), key=lambda item: item[1].timestamp)
    return f"rank {rank} ended with exit code {failure.exitcode}; the run ended on every rank"
