"""How long plans take to simulate, and the answer to be written and checked: seconds, by their number of actions.

Both grow with the micro-batches, so that a plan of a million of them takes longer than a short search. What is seen of
the machine's speed on the way corrects the estimate.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pipeplan.search.space.candidates import Candidate

SIMULATED = 3e-6
"""Seconds for an action, before one was simulated."""
FINISHED = 8.0
"""How many times as long the answer takes: its time line, its lists, and their validation."""
KNOWN = 2_000
"""Fewer actions say little about the speed."""
MOST = 20_000_000
"""Actions for which there is memory."""


class Pace:
    """The speed of a search's machine."""

    def __init__(self) -> None:
        self._seconds = SIMULATED

    def simulate(self, candidate: Candidate) -> float:
        """Seconds that its simulation takes."""
        return self._seconds * actions(candidate)

    def finish(self, candidate: Candidate) -> float:
        """Seconds from the end of the search to the answer, if that is a plan of this candidate."""
        return FINISHED * self.simulate(candidate)

    @contextmanager
    def simulating(self, candidate: Candidate) -> Iterator[None]:
        """Measure what a simulation takes."""
        began = time.monotonic()
        yield
        if actions(candidate) >= KNOWN:
            seen = (time.monotonic() - began) / actions(candidate)
            self._seconds = (self._seconds + 3 * seen) / 4


def actions(candidate: Candidate) -> int:
    """A forward and a backward of each micro-batch on each stage."""
    return 2 * candidate.micro_batches * candidate.depth
