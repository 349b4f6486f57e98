"""Outcomes of workers: one that ends, one that fails, one that is killed, one that hangs."""

import os
import time

from pipeplan.analysis.sweep.crew import Crew


def test_every_end_is_told_apart() -> None:
    """A normal end has no error; an exit code, a signal and a missed deadline are named."""
    with Crew(4) as crew:
        crew.start(0, time.sleep, (0.0,), 60)
        crew.start(1, os._exit, (3,), 60)
        crew.start(2, os.abort, (), 60)
        crew.start(3, time.sleep, (600.0,), 0.2)
        assert not crew.free
        told: dict[int, str] = {}
        while crew.busy:
            told |= dict(crew.finished())
    assert told[0] == ""
    assert "exit code 3" in told[1]
    assert "signal 6" in told[2]
    assert "did not end in time" in told[3]


def test_leaving_ends_the_workers() -> None:
    """No worker outlives the block, however it ends."""
    try:
        with Crew(1) as crew:
            crew.start(0, time.sleep, (600.0,), 600)
            process = crew._tasks[0].process
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert process.exitcode == -9
    assert not crew.busy


def test_nobody_to_wait_for() -> None:
    """Without workers, waiting returns at once."""
    with Crew(1) as crew:
        assert crew.finished() == []
