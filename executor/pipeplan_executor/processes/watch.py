"""Monitor of the ranks of this machine: one without a pulse is killed."""

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeplan_executor.processes.rank import PULSE, START_UP

PATIENCE = 0.6
"""Fraction of the timeout after which a rank without pulse is killed, before its peers' timeout."""


def first_patience(timeout: float) -> float:
    """Return the seconds that a rank has for its first pulse: not less than `START_UP`."""
    return max(timeout, START_UP)


class Watch:
    """Monitor that kills a rank whose pulse stops, or never starts while others have one.

    Silence is counted in polls, not in clock time, since a stopped launcher would see all ranks silent.

    Parameters
    ----------
    folder : Path
        Folder of the ranks' pulse files.
    processes : sequence of int
        Each rank's process.
    timeout : float
        Seconds; a rank that had a pulse may be silent for the fraction `PATIENCE` of them, others for `first_patience`.

    Attributes
    ----------
    killed : list of (int, str)
        Ranks, and their last known places in the user's code.
    last_pulse : dict
        Time of each rank's last pulse, and its place in the user's code.
    """

    def __init__(self, folder: Path, processes: Sequence[int], timeout: float) -> None:
        self.killed: list[tuple[int, str]] = []
        self.last_pulse = dict.fromkeys(range(len(processes)), (0.0, ""))
        self._folder, self._processes = folder, processes
        self._looks, self._first_looks = (
            max(3, round(seconds / PULSE)) for seconds in (PATIENCE * timeout, first_patience(timeout))
        )
        self._silent = dict.fromkeys(range(len(processes)), 0)
        self._pulses: dict[int, int] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(PULSE):
            for rank in self.last_pulse:
                if self._beats(rank):
                    self._silent[rank] = 0
                elif self._pulses:
                    self._silent[rank] += 1
                    if self._silent[rank] == (self._looks if rank in self._pulses else self._first_looks):
                        self._kill(rank)

    def _beats(self, rank: int) -> bool:
        pulse = self._folder / f"pulse{rank}"
        try:
            last = pulse.stat().st_mtime_ns
            if self._pulses.get(rank) == last:
                return False
            self._pulses[rank] = last
            self.last_pulse[rank] = time.time(), pulse.read_text()
        except FileNotFoundError:
            return False
        return True

    def _kill(self, rank: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._processes[rank], signal.SIGKILL)
            self.killed.append((rank, self.last_pulse[rank][1]))
