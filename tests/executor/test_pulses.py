"""Heartbeats of ranks through a store, under another launcher."""

import threading

import pytest
import torch.distributed as dist

from pipeplan_executor.processes import joined


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.Store:
    """A store, with short waits for heartbeats."""
    monkeypatch.setattr(joined, "PULSE", 0.02)
    return dist.HashStore()


def asked(store: dist.Store, *places: str) -> str:
    """Return rank 0's diagnosis; ``places``: where the other ranks are, followed by ``…`` if they have a pulse."""
    done = threading.Event()

    def beat() -> None:
        number = 0
        while not done.is_set():
            number += 1
            for rank, place in enumerate(places, 1):
                store.set(str(rank), f"{number if place.endswith('…') else 7} {place.removesuffix('…')}")

    thread = threading.Thread(target=beat)
    thread.start()
    while not store.check([str(len(places))]):
        pass
    try:
        return joined.missing_ranks(store, 0, 1 + len(places))
    finally:
        done.set()
        thread.join()


def test_a_rank_without_pulse_is_named(store: dist.Store) -> None:
    """Ranks that stand still are named, with the place in the user's code if known; busy ones are left out."""
    assert asked(store, "data.py:3 in draw…", "…", "data.py:5 in load", "") == (
        "rank 3 gives no sign of life (it was at data.py:5 in load), rank 4 gives no sign of life"
    )


def test_a_rank_that_is_busy_is_named(store: dist.Store) -> None:
    """If all have a pulse, the ranks at work in the user's code are named."""
    assert asked(store, "…", "data.py:3 in draw…") == "rank 2 is busy at data.py:3 in draw"


def test_ranks_that_lost_another_one_are_not_blamed(store: dist.Store) -> None:
    """A rank that has said that it is lost itself needs no pulse any more; one that never had any does."""
    store.set("1", joined.LOST)
    assert joined.missing_ranks(store, 0, 2) == ""
    assert joined.missing_ranks(store, 0, 3) == "rank 2 gives no sign of life"
