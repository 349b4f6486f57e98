"""Outcomes of workers: one that ends, one that fails, one that is killed, one that hangs."""

import os
import time

from pipeplan.analysis.sweep.workers import WorkerPool


def test_every_end_is_told_apart() -> None:
    """A normal end has no error; an exit code, a signal and a missed deadline are named."""
    with WorkerPool(4) as pool:
        pool.start(0, time.sleep, (0.0,), 60)
        pool.start(1, os._exit, (3,), 60)
        pool.start(2, os.abort, (), 60)
        pool.start(3, time.sleep, (600.0,), 0.2)
        assert not pool.free
        told: dict[int, str] = {}
        while pool.busy:
            told |= dict(pool.finished())
    assert told[0] == ""
    assert "exit code 3" in told[1]
    assert "signal 6" in told[2]
    assert "did not end in time" in told[3]


def test_leaving_ends_the_workers() -> None:
    """No worker outlives the block, however it ends."""
    try:
        with WorkerPool(1) as pool:
            pool.start(0, time.sleep, (600.0,), 600)
            process = pool._tasks[0].process
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert process.exitcode == -9
    assert not pool.busy


def test_waiting_without_workers() -> None:
    """Without workers, waiting returns at once."""
    with WorkerPool(1) as pool:
        assert pool.finished() == []
