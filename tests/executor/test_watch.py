"""The monitor of a machine's ranks: who is stuck is killed, who waits for a processor is not."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeplan_executor.processes import watch
from pipeplan_executor.processes.watch import Watch, waited_for_processor


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that sleeps."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as sleeping:
        yield sleeping
        sleeping.kill()


def watched(process: subprocess.Popen[bytes], folder: Path, looks: int, until: float) -> bool:
    """Return whether a rank with one pulse is killed in some polls of a hundredth of a second."""
    (folder / "pulse0").write_text("data.py:3 in draw")
    with Watch(folder, [process.pid], looks * watch.PULSE / watch.PATIENCE) as monitor:
        end = time.monotonic() + until
        while not monitor.killed and time.monotonic() < end:
            time.sleep(watch.PULSE)
    return monitor.killed == [(0, "data.py:3 in draw")]


def test_a_rank_without_pulse_is_killed(
    process: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sleeping process waits for no processor, so each of its silent polls counts."""
    monkeypatch.setattr(watch, "PULSE", 0.01)
    assert watched(process, tmp_path, 10, 120.0)


def test_a_rank_that_waits_for_a_processor_is_late_and_not_stuck(
    process: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polls in which the rank was ready all the time do not count."""
    monkeypatch.setattr(watch, "PULSE", 0.01)
    monkeypatch.setattr(watch, "waited_for_processor", lambda _: time.monotonic() * 1e3)
    assert not watched(process, tmp_path, 3, 1.0)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not tell")
def test_waits_are_read(process: subprocess.Popen[bytes]) -> None:
    """Seconds of a process that lives, which only grow; 0 of one that does not."""
    first = waited_for_processor(process.pid)
    assert 0 <= first <= waited_for_processor(process.pid)
    process.kill()
    process.wait()
    assert waited_for_processor(process.pid) == 0.0
