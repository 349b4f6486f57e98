"""What the dynamic programmes share: the interval that holds the optimum, and who is told when it shrinks."""

from pipeplan_formulations.clock import Clock
from pipeplan_formulations.partition.problem import Boundaries, ChainPartition
from pipeplan_formulations.report import Limits, Progress


class Bracket:
    """``low`` ≤ optimum of the problem without (6) ≤ its value of ``best``.

    Where the least recomputation is known exactly, ``high`` is that value. Elsewhere it is an optimistic one: then
    ``low`` and ``high`` meet at the optimum of a relaxation, and ``best`` may be worth more.

    Attributes
    ----------
    low : int
        Proven.
    high : int or None
        The least optimistic value, without (6), of all that was offered.
    best : boundaries or None
        The incumbent, by its true value without (6).
    cutoff : int or None
        Values from here on do not matter: once ``low`` gets there, there is nothing more to do.
    """

    def __init__(
        self, problem: ChainPartition, limits: Limits, progress: Progress | None, cutoff: int | None = None
    ) -> None:
        self._problem = problem.with_paths(())
        self._full = problem
        self._gap = limits.gap
        self._progress = progress
        self._value: int | None = None
        self.clock = Clock(limits)
        self.low = problem.lower_bound()
        self.high: int | None = None
        self.best: Boundaries | None = None
        self.cutoff = cutoff

    def raise_low(self, low: int) -> None:
        """Everything below ``low`` is proven impossible."""
        if low > self.low:
            self.low = low
            self._tell()

    def offer(self, boundaries: Boundaries) -> None:
        """Keep the boundaries if they are better than the incumbent."""
        high = self._problem.evaluate(boundaries, optimistic=True)
        self.high = high if self.high is None else min(self.high, high)
        value = self._problem.evaluate(boundaries) if self._problem.recomputable.any() else high
        if self._value is None or value < self._value:
            self._value, self.best = value, boundaries
            self._tell()

    @property
    def proven(self) -> bool:
        """Whether both ends meet."""
        return self.high is not None and self.high <= self.low

    @property
    def closed(self) -> bool:
        """Whether both ends meet, or are as close as the limits ask, or nothing below the cutoff is left."""
        return self.beyond or (self.high is not None and self.high - self.low <= self._gap * self.high)

    @property
    def beyond(self) -> bool:
        """Whether nothing below the cutoff is left."""
        return self.cutoff is not None and self.low >= self.cutoff

    @property
    def horizon(self) -> int | None:
        """Values from here on do not matter: the incumbent's, or the cutoff."""
        known = [value for value in (self.high, self.cutoff) if value is not None]
        return min(known, default=None)

    def _tell(self) -> None:
        if self._progress is not None:
            incumbent = self._full.evaluate(self.best) if self.best is not None else None
            self._progress(incumbent, self.low)
