"""Incumbent and proven bound of a solver while it runs.

::

    proven impossible                       better exists
    ─────────────────┤                   ├────────────────▶ objective
                    low  ≤  optimum  ≤  high
"""

from collections.abc import Callable
from typing import Generic

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Progress, Report, Solution, Status, Stop
from pipeplan_formulations.common.sentinels import UNLIMITED


class Bracket(Generic[Solution]):
    """The interval that contains the optimum, with the solver's clock, limits and progress callback.

    Parameters
    ----------
    evaluate : callable
        The objective of a solution; None if the solution is not feasible.
    limits : Limits
    on_progress : callable, optional
        Called whenever the incumbent or the bound improves.
    cutoff : int, optional
        Objectives of at least this do not matter: once ``low`` reaches it, the search is over.
    largest : int
        Upper bound on the objective of every solution.
    relaxed : callable, optional
        A solution's objective in the relaxation that ``low`` bounds, if that may be below ``evaluate``.

    Attributes
    ----------
    low : int
        Proven bound.
    best : solution or None
        The incumbent.
    value : int or None
        The incumbent's objective.
    high : int or None
        Least objective seen: ``value``, or with ``relaxed`` the least of its values.
    impossible : bool
        Set once it is proved that there is no solution.
    """

    def __init__(
        self,
        evaluate: Callable[[Solution], int | None],
        limits: Limits,
        on_progress: Progress | None = None,
        cutoff: int | None = None,
        largest: int = UNLIMITED - 1,
        relaxed: Callable[[Solution], int] | None = None,
    ) -> None:
        self._evaluate, self._relaxed, self._on_progress, self._largest = evaluate, relaxed, on_progress, largest
        self.limits, self.clock, self.cutoff = limits, Clock(limits), cutoff
        self.low = 0
        self.best: Solution | None = None
        self.value: int | None = None
        self.high: int | None = None
        self.impossible = False

    def resume(self, limits: Limits, cutoff: int | None = None) -> None:
        """Go on within other limits, and below a cutoff that is no higher."""
        self.limits = limits
        self.clock.restart(limits)
        if cutoff is not None:
            self.cutoff = cutoff if self.cutoff is None else min(self.cutoff, cutoff)

    def offer(self, solution: Solution, value: int | None = None) -> int | None:
        """Keep a solution if it is better than the incumbent; return its objective, None if it is not feasible.

        ``value``: the objective, if the caller has a better one than ``evaluate``.
        """
        value = self._evaluate(solution) if value is None else value
        high = value if self._relaxed is None else self._relaxed(solution)
        if high is not None and (self.high is None or high < self.high):
            self.high = high
        if value is not None and (self.value is None or value < self.value):
            self.value, self.best = value, solution
            self._report_progress()
        return value

    def raise_low(self, low: int) -> None:
        """Record that no solution has an objective below ``low``."""
        low = low if self.high is None else min(low, self.high)
        if low > self.low:
            self.low = low
            self._report_progress()

    @property
    def ceiling(self) -> int:
        """Better solutions stay below this objective."""
        return self._largest + 1 if self.high is None else self.high

    @property
    def horizon(self) -> int:
        """The least objective that does not matter: the smaller of ceiling and cutoff."""
        return self.ceiling if self.cutoff is None else min(self.ceiling, self.cutoff)

    @property
    def proven(self) -> bool:
        """True if both ends meet."""
        return self.high is not None and self.high <= self.low

    @property
    def beyond(self) -> bool:
        """True if no solution below the cutoff remains."""
        return self.cutoff is not None and self.low >= self.cutoff

    @property
    def closed(self) -> bool:
        """True if no better solution remains, or the gap is within the limits."""
        return (
            self.impossible
            or self.beyond
            or (self.high is not None and self.high - self.low <= self.limits.gap * self.high)
        )

    def report(self, stop: Stop, backend: str, version: str = "1") -> Report[Solution]:
        """The answer so far; ``stop`` is why the search ended, unless the answer is proved."""
        if self.value is None:
            bound, status = self.low, Status.INFEASIBLE if self.impossible else Status.UNKNOWN
        else:
            bound = min(self.low, self.value)
            status = Status.OPTIMAL if bound == self.value else Status.FEASIBLE
        if status in (Status.OPTIMAL, Status.INFEASIBLE) and stop is not Stop.INTERRUPT:
            stop = Stop.OPTIMALITY
        wall, seed = self.clock.wall, self.limits.seed
        return Report(status, stop, self.value, bound, wall, backend, version, seed, self.best)

    def _report_progress(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.value, self.low)
