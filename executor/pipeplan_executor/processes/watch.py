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


def waited_for_processor(process: int) -> float:
    """Return the seconds that a process's main thread was ready and had no processor; 0 where Linux does not tell."""
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class Watch:
    """Monitor that kills a rank whose pulse stops, or never starts while others have one.

    Silence is counted in polls, not in clock time, since a stopped launcher would see all ranks silent. The part of a
    poll in which a rank waits for a processor does not count: on a busy machine it is late, and not stuck.

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
        self._silent = dict.fromkeys(range(len(processes)), 0.0)
        self._waited = dict.fromkeys(range(len(processes)), 0.0)
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
                share = self._share(rank)
                if self._beats(rank):
                    self._silent[rank] = 0.0
                elif self._pulses:
                    allowed = self._looks if rank in self._pulses else self._first_looks
                    before, self._silent[rank] = self._silent[rank], self._silent[rank] + share
                    if before < allowed <= self._silent[rank]:
                        self._kill(rank)

    def _share(self, rank: int) -> float:
        """The part of the last poll in which the rank's main thread did not wait for a processor."""
        waited = waited_for_processor(self._processes[rank])
        before, self._waited[rank] = self._waited[rank], waited
        return 1.0 - min(max(waited - before, 0.0) / PULSE, 1.0)

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
