"""`scripts/quiet_clock.py`: time as the file of the clock says."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.shared_data import ROOT

SCRIPT = ROOT / "scripts" / "quiet_clock.py"
CHILD = f"""
import runpy, time
runpy.run_path({str(SCRIPT)!r})["patch"]()
began = time.monotonic(), time.perf_counter(), time.time()
spent = time.process_time()
sum(range(1_000_000))
time.sleep(0.01)
print(*began, *(time.monotonic() - began[0], time.perf_counter() - began[1], time.time() - began[2]))
print(time.process_time() - spent)
"""


@pytest.mark.parametrize("rate", [0.0, 1e6])
def test_all_clocks_go_at_the_rate_of_the_file(tmp_path: Path, rate: float) -> None:
    """Not at all, or so fast that it cannot be missed."""
    script = runpy.run_path(str(SCRIPT))
    clock = tmp_path / "clock"
    clock.write_bytes(script["CLOCK"].pack(0.0, 7.0, rate, 1_000.0))
    environment = os.environ | {script["VARIABLE"]: str(clock)}
    out = subprocess.run([sys.executable, "-c", CHILD], env=environment, check=True, capture_output=True, text=True)
    monotonic, counter, date, *passed = map(float, out.stdout.split())
    if rate == 0:
        assert (monotonic, counter, date) == (7.0, 7.0, 1_007.0)
        assert passed == [0.0] * 4
    else:
        assert min(passed) > 1_000


def test_the_clock_slows_down_by_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that takes twice as long as at best halves the rate; one that takes less does not raise it."""
    script = runpy.run_path(str(SCRIPT))
    for seconds, rate in ((2.0, 0.5), (0.5, 1.0)):
        clock = script["Clock"](tmp_path / "clock", 1.0)
        own = clock.keep.__func__.__globals__
        monkeypatch.setitem(own, "PAUSE", 0.0)
        monkeypatch.setitem(own, "loop", lambda clock=clock, seconds=seconds: clock.end() or seconds)
        clock.keep()
        assert script["CLOCK"].unpack((tmp_path / "clock").read_bytes())[2] == rate
        assert clock.slowdowns == [1 / rate]


def test_a_command_runs_on_the_clock_and_its_code_is_returned() -> None:
    """In a process of its own, whose clock is patched before it begins."""
    child = "import sys, time; sys.exit(3 if time.monotonic.__name__ == 'now' else 4)"
    command = [sys.executable, str(SCRIPT), "--best", "1000", sys.executable, "-c", child]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 3
    assert "slowdown" in ended.stderr
