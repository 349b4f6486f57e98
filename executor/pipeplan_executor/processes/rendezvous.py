"""Rendezvous of ranks: through a file on one machine; otherwise as the launcher says, also after its restarts.

Torchrun's agent keeps one key-value store for all attempts, so a restarted rank finds the addresses of the previous
attempt (pytorch issue 135712). Therefore the ranks of an attempt first agree on a unique name, and prefix their keys
with it.

::

    rank 1   hello/1 = 5f0c ────────────────╮   waits for answer/5f0c, which cannot be older than this process
    rank 0   name of the attempt = 9b3e     ╰▶ answer/5f0c = 9b3e
    rank 1   present under 9b3e                rank 0 answers until all are present: the first hello may be an old one
"""

import datetime
import os
import time
import uuid
from pathlib import Path

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

LOOK = 0.02
"""Seconds between two polls of the first rank."""


def join_local(backend: str, timeout: float, file: Path, start_up: float) -> None:
    """Initialise the process group of the ranks of this machine, which meet in a file.

    Parameters
    ----------
    start_up : float
        Seconds in which all ranks must come; afterwards ``timeout`` holds.

    Raises
    ------
    torch.distributed.DistError
        If a rank does not join in time.
    """
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(str(file), world)
    store.set_timeout(datetime.timedelta(seconds=start_up))
    store.set(f"come/{rank}", "")
    store.wait([f"come/{other}" for other in range(world)])
    patience = datetime.timedelta(seconds=timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=patience)


def join(backend: str, timeout: float) -> None:
    """Initialise the process group that the environment describes, as another launcher set it.

    Raises
    ------
    torch.distributed.DistError
        If a rank does not join in time.
    """
    patience = datetime.timedelta(seconds=timeout)
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) == 0:
        dist.init_process_group(backend, init_method="env://", timeout=patience)
        return
    store, rank, world = next(iter(rendezvous("env://", timeout=patience)))
    fresh = dist.PrefixStore(agree(dist.PrefixStore("pipeplan", store), rank, world, timeout), store)
    dist.init_process_group(backend, store=fresh, rank=rank, world_size=world, timeout=patience)


def agree(store: dist.Store, rank: int, world: int, timeout: float) -> str:
    """Agree with all present ranks on a new name of the attempt, and return it.

    Raises
    ------
    torch.distributed.DistStoreError
        If a rank does not join in time.
    """
    own = uuid.uuid4().hex
    if rank:
        store.set(f"hello/{rank}", own)
        name = store.get(f"answer/{own}").decode()
        store.set(f"{name}/{rank}", "present")
        return str(name)
    answered: dict[int, bytes] = {}
    absent = set(range(1, world))
    deadline = time.monotonic() + timeout
    while absent:
        for other in sorted(absent):
            if store.check([f"{own}/{other}"]):
                absent.remove(other)
            elif store.check([f"hello/{other}"]) and (asked := store.get(f"hello/{other}")) != answered.get(other):
                store.set(f"answer/{asked.decode()}", own)
                answered[other] = asked
        if time.monotonic() > deadline:
            raise dist.DistStoreError(f"rank 0 waited {timeout:.0f} s for rank {min(absent)}: timeout")
        time.sleep(LOOK)
    return own
