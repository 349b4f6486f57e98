"""Clocks, which count work and not waiting."""

import time

import torch

from pipeplan.frontend.profile.meter import clock_for

CPU = torch.device("cpu")


def test_one_thread_counts_its_own_time() -> None:
    """While the thread sleeps, wall time passes and its own time does not."""
    own, wall = clock_for(CPU, threads=1), clock_for(CPU, threads=2)
    starts = own.mark(), wall.mark()
    time.sleep(0.2)
    ends = own.mark(), wall.mark()
    assert wall.between(starts[1], ends[1]) >= 200_000_000
    assert own.between(starts[0], ends[0]) < 200_000_000


def test_time_does_not_run_backwards() -> None:
    """Two marks with work between them are in order."""
    clock = clock_for(CPU, threads=1)
    start = clock.mark()
    torch.ones(10_000).sum()
    end = clock.mark()
    clock.settle()
    assert clock.between(start, end) > 0
