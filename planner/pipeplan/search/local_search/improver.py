"""The local search of a branch-and-bound: some tries after each new incumbent, and a process beside it.

The process also does what the search asks of it.
"""

import time
from collections.abc import Iterator

from pipeplan.baselines.deadline import ending
from pipeplan.search.evaluate import EvaluatedPlan, actions
from pipeplan.search.local_search.beside import Message, ProcessBeside, Recall, Request, Sent
from pipeplan.search.local_search.pool import LocalSearch
from pipeplan.search.space.spaces import Spaces

BESIDE_AFTER = 1.0
"""Seconds of search after which the process is started: many questions are answered by then."""
PATIENCE = 0.3
"""Share of the search's time in which the process may find nothing, at least."""
SHARE, ALLOWANCE = 0.1, 0.5
"""Share of the search's time, and seconds in addition, that tries within the search may take."""
SLICES = 6
"""Most slices of tries at once within the search,"""
TRIES, LEAST_TRIES, ACTIONS = 50, 4, 200_000
"""and the tries of one: fewer where plans have so many actions that a slice would have more than this."""


class Improver:
    """Improves the plans of a search on these spaces. ``beside``: also in a process of its own.

    ``limit``: seconds of the search, of which the process spends `PATIENCE` in vain before it rests.
    """

    def __init__(self, spaces: Spaces, seed: int, limit: float, *, beside: bool) -> None:
        self._spaces, self._seed, self._limit, self._beside = spaces, seed, limit, beside
        self._search = LocalSearch(spaces, seed)
        self._process: ProcessBeside | None = None
        self._hints: list[Sent] = []
        self._best: EvaluatedPlan | None = None
        self._new = False
        self._began = time.monotonic()
        self._spent = 0.0

    def offer(self, plan: EvaluatedPlan) -> None:
        """Start from this plan too."""
        if self.sends(Message.of(plan)):
            return
        self._search.add(plan)
        if self._best is None or plan.value < self._best.value:
            self._best, self._new = plan, True

    def sends(self, hint: Sent) -> bool:
        """Send a hint to the process, now or when it begins; True if it has it now."""
        if self._beside:
            self._hints.append(hint)
        if self._process is None:
            return False
        self._process.send(hint)
        return True

    @property
    def running(self) -> bool:
        """Whether there is a process that may answer."""
        return self._process is not None and not self._process.ended

    def asks(self, request: Request | Recall) -> bool:
        """Send a request to the process, if one is running; its answer is among `answers`. Or recall one."""
        if self._process is None or self._process.ended:
            return False
        self._process.send(request)
        return True

    def answers(self, wait: float = 0.0) -> Iterator[object]:
        """Yield the answers to requests since the last call; if there are none, wait so many seconds for one."""
        if self._process is not None:
            yield from self._process.answers(wait)

    def better(self, deadline: float) -> Iterator[EvaluatedPlan]:
        """Yield plans better than those offered, if any are found until ``deadline`` of `time.monotonic`."""
        if self._best is None:
            return
        if self._process is not None and self._process.ended:  # killed, or without what this call plugged in
            self._process.close()
            self._process, self._beside, self._new = None, False, True
        if self._process is not None:
            yield from self._process.found()
        elif self._new or (not self._beside and time.monotonic() - self._began > BESIDE_AFTER):
            yield from self._within(deadline)
        if self._beside and self._process is None and time.monotonic() - self._began > BESIDE_AFTER:
            self._process = ProcessBeside(self._spaces, self._seed + 1, PATIENCE * self._limit)
            for hint in self._hints:
                self._process.send(hint)
        self._new = False

    def _within(self, deadline: float) -> Iterator[EvaluatedPlan]:
        """A few slices of tries in this process."""
        assert self._best is not None
        tries = max(min(TRIES, ACTIONS // actions(self._best.candidate)), LEAST_TRIES)
        for _ in range(SLICES):
            began = time.monotonic()
            if began >= deadline or self._spent > ALLOWANCE + SHARE * (began - self._began):
                return
            with ending(min(deadline, began + max(ALLOWANCE, SHARE * (began - self._began)))):
                found = self._search.improve(tries)
            self._spent += time.monotonic() - began
            if found is not None:
                yield found

    def close(self) -> None:
        """End the process beside the search."""
        if self._process is not None:
            self._process.close()
