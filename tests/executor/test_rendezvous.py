"""Rendezvous through a store in which earlier attempts have left their keys."""

import threading
import time

import pytest
import torch.distributed as dist

from pipeplan_executor.processes.rendezvous import agree


def met(store: dist.Store, world: int, late: tuple[int, ...]) -> dict[int, str]:
    """Return every rank's name of the attempt; ranks in ``late`` join after the others' first poll."""
    names: dict[int, str] = {}

    def come(rank: int) -> None:
        if rank in late:
            time.sleep(0.2)
        names[rank] = agree(store, rank, world, timeout=60)

    ranks = [threading.Thread(target=come, args=(rank,)) for rank in range(world)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return names


def test_every_attempt_has_a_name_of_its_own() -> None:
    """All ranks of an attempt know one name, which no earlier attempt had, whoever comes first and whatever is left."""
    store = dist.HashStore()
    seen: set[str] = set()
    for late in ((), (0,), (1, 2), (2,)):
        names = met(store, 3, late)
        assert len(names) == 3
        (name,) = set(names.values())
        assert name not in seen
        seen.add(name)


def test_a_rank_that_does_not_come_is_named() -> None:
    """The first rank waits until its timeout, and names the missing rank."""
    store = dist.HashStore()
    with pytest.raises(dist.DistStoreError, match="for rank 1: timeout"):
        agree(store, 0, 2, timeout=0.1)
