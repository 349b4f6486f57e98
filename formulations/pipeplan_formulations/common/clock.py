"""A clock with a time limit, for long loops."""

import time
from math import inf

from pipeplan_formulations.common.report import Limits


class OutOfTimeError(Exception):
    """Raised by `Clock.check`; the solver that made the clock catches it."""


class Clock:
    """Wall time since the start, against ``limits.time``."""

    def __init__(self, limits: Limits) -> None:
        self.restart(limits)

    def restart(self, limits: Limits) -> None:
        """Begin anew, with other limits."""
        self._start = time.monotonic()
        self._limit = limits.time

    @property
    def wall(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def left(self) -> float:
        """Seconds until the limit, never negative."""
        return max(0.0, self._limit - self.wall)

    @property
    def over(self) -> bool:
        """True if a solver that stopped by itself did so because of its time limit.

        CP-SAT stops up to about a tenth of a second before its limit, which is a large part of a short limit.
        """
        return self.left <= max(0.1 * self._limit, 0.25)

    def check(self) -> None:
        """Raise `OutOfTimeError` once the limit has passed."""
        if self.wall > self._limit:
            raise OutOfTimeError


def no_limit() -> Clock:
    """Return a clock that is never over."""
    return Clock(Limits(time=inf))
