"""Run a command on the clocks of a quiet machine: ``python scripts/quiet_clock.py [--best MS] COMMAND``.

A time limit on a busy machine is worth less than it says, and differently so each time. Here every Python process of
the command has clocks that are divided by the slowdown of a fixed loop, which is timed beside it all the time::

    on the clock    0        1        2        3        4        5 s
    slowdown        │   1.0  │      1.6        │   1.0  │  1.3   │
    here            0        1             2.25         3.25    4.0 s

What comes of it are seconds of a quiet machine as far as the loop says: not what caches and memory lose to others.
"""

import argparse
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

ADDITIONS = 100_000
"""Additions of the loop."""
PAUSE, LOOPS, LAST = 0.4, 2, 4
"""Seconds between two looks, loops of each, and the looks whose median counts."""
CLOCK = struct.Struct("<dddd")
"""Time on the clock, time here, seconds here for each on the clock, and the date at the beginning of time here."""
VARIABLE = "PIPEPLAN_QUIET_CLOCK"
"""Environment variable with the file of the clock."""
PATCH = """import runpy
runpy.run_path({own!r})["patch"]()
"""


def loop() -> float:
    """Processor seconds of the fixed loop."""
    began, total = time.process_time(), 0
    for number in range(ADDITIONS):
        total += number
    return time.process_time() - began


def best_of(seconds: float) -> float:
    """The least time of the loop in so many seconds."""
    least, until = loop(), time.monotonic() + seconds
    while time.monotonic() < until:
        least = min(least, loop())
    return least


class Clock:
    """The clock in a file that all processes of a command map."""

    def __init__(self, file: Path, best: float) -> None:
        self._file, self._best, self._ends = file, best, threading.Event()
        self._looks: deque[float] = deque(maxlen=LAST)
        self.slowdowns: list[float] = []
        with file.open("wb") as out:
            out.write(CLOCK.pack(time.monotonic(), time.monotonic(), 1.0, time.time() - time.monotonic()))

    def keep(self) -> None:
        """Measure the slowdown until the end."""
        with self._file.open("r+b") as file, mmap.mmap(file.fileno(), CLOCK.size) as memory:
            before, here, rate, date = CLOCK.unpack(memory[: CLOCK.size])
            while not self._ends.wait(PAUSE):
                self._looks.append(min(loop() for _ in range(LOOPS)) / self._best)
                slowdown = max(sorted(self._looks)[len(self._looks) // 2], 1.0)
                self.slowdowns.append(slowdown)
                now = time.monotonic()
                here, before, rate = here + (now - before) * rate, now, 1 / slowdown
                memory[: CLOCK.size] = CLOCK.pack(before, here, rate, date)

    def end(self) -> None:
        """Measure no longer."""
        self._ends.set()


def patch() -> None:
    """Give this process the clock; called when Python starts."""
    with Path(os.environ[VARIABLE]).open("rb") as file:
        memory = mmap.mmap(file.fileno(), CLOCK.size, access=mmap.ACCESS_READ)
    monotonic, processor = time.monotonic, time.process_time

    def read() -> tuple[float, ...]:
        while (once := memory[: CLOCK.size]) != memory[: CLOCK.size]:  # half written
            pass
        return CLOCK.unpack(once)

    def now() -> float:
        before, here, rate, _ = read()
        return here + (monotonic() - before) * rate

    spent = [processor(), 0.0]

    def process_time() -> float:
        since = processor()
        spent[:] = since, spent[1] + (since - spent[0]) * read()[2]
        return spent[1]

    time.monotonic = time.perf_counter = now
    time.time = lambda: read()[3] + now()
    time.process_time = process_time


def main() -> int:
    """Run the command, and say how slow the machine was."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--best", type=float, help="the loop's milliseconds when it is quiet (else the best of 5 s)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    if not asked.command:
        parser.error("a command is needed")
    best = asked.best / 1_000 if asked.best else best_of(5.0)
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(Path(folder) / "clock", best)
        Path(folder, "sitecustomize.py").write_text(PATCH.format(own=str(Path(__file__).resolve())))
        paths = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        measuring = threading.Thread(target=clock.keep, daemon=True)
        measuring.start()
        environment = os.environ | {"PYTHONPATH": paths, VARIABLE: str(Path(folder) / "clock")}
        code = subprocess.run(asked.command, env=environment, check=False).returncode
        clock.end()
        measuring.join()
    mean = sum(clock.slowdowns) / max(len(clock.slowdowns), 1)
    print(f"slowdown {mean:.2f} on average, by a loop of {best * 1e3:.2f} ms at best", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
