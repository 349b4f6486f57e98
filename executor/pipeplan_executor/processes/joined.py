"""Heartbeats of ranks that torchrun or Slurm started, through the rendezvous store.

::

    rank 1   pulse/1 = "17 my_data.py:33 in draw"      every half second; the number grows
    rank 0   timed out ──▶ reads every pulse twice, a little apart: a rank with an unchanged pulse is dead or stopped
"""

import datetime
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count

import torch.distributed as dist

from pipeplan_executor.processes.rank import PULSE, RunError, place

LOST = "lost"
"""Pulse of a rank that ends because of another one."""
ANSWER = 5.0
"""Seconds within which the store must answer."""


@contextmanager
def reporting_pulse(timeout: float) -> Iterator[None]:
    """Context that reports this rank's pulse, and adds to a `RunError` which other ranks caused it, if known."""
    try:
        with _beating(timeout):
            yield
    except RunError as error:
        raise RunError(f"{error}; {_blame()}".removesuffix("; ")) from error


@contextmanager
def _beating(timeout: float) -> Iterator[None]:
    done = threading.Event()
    thread = threading.Thread(target=_beat, args=(done, timeout), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(ANSWER)


def _beat(done: threading.Event, timeout: float) -> None:
    with suppress(RuntimeError):  # the store is gone: the run has ended
        store = _store(timeout)
        for number in count():
            store.set(os.environ["RANK"], f"{number} {place()}")
            if done.wait(PULSE):
                return


def _store(timeout: float) -> dist.Store:
    """Open a separate connection to the rendezvous store: a waiting rank blocks its first one."""
    patience = datetime.timedelta(seconds=timeout)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.PrefixStore("pulse", dist.TCPStore(address, port, None, False, patience, wait_for_workers=False))


def _blame() -> str:
    try:
        return missing_ranks(_store(ANSWER), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    except RuntimeError:
        return f"{os.environ['MASTER_ADDR']}, the rendezvous host, does not answer"


def missing_ranks(store: dist.Store, own: int, world: int) -> str:
    """Name the other ranks without a sign of life, otherwise those busy in the user's code; empty if none."""
    # pulses of all ranks, twice: a living rank writes a new one in between
    store.set(str(own), LOST)
    before = _pulses(store, world)
    time.sleep(3 * PULSE)
    after = _pulses(store, world)
    others = [rank for rank in range(world) if after[rank] != LOST]
    places = {rank: after[rank].partition(" ")[2] for rank in others}
    still = [rank for rank in others if before[rank] == after[rank]]
    if still:
        return ", ".join(f"rank {rank} gives no sign of life{_last(places[rank])}" for rank in still)
    return ", ".join(f"rank {rank} is busy at {places[rank]}" for rank in others if places[rank])


def _pulses(store: dist.Store, world: int) -> list[str]:
    names = [str(rank) for rank in range(world)]
    return [store.get(name).decode() if store.check([name]) else "" for name in names]


def _last(at: str) -> str:
    return f" (it was at {at})" if at else ""
