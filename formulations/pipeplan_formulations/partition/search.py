"""What the dynamic programmes share: the interval that holds the optimum, and who is told when it shrinks."""

from collections.abc import Callable

from pipeplan_formulations.clock import Clock
from pipeplan_formulations.partition.problem import Boundaries, ChainPartition
from pipeplan_formulations.report import Limits, Progress


class Bracket:
    """``low`` ≤ optimum of the problem without (6) ≤ its value of ``best``.

    Attributes
    ----------
    low : int
        Proven.
    best : boundaries or None
        The incumbent; ``high`` is its value without (6).
    """

    def __init__(self, problem: ChainPartition, limits: Limits, progress: Progress | None) -> None:
        self._problem = problem.with_paths(())
        self._full = problem
        self._gap = limits.gap
        self._progress = progress
        self.clock = Clock(limits)
        self.low = problem.lower_bound()
        self.high: int | None = None
        self.best: Boundaries | None = None

    def raise_low(self, low: int) -> None:
        """Everything below ``low`` is proven impossible."""
        if low > self.low:
            self.low = low
            self._tell()

    def offer(self, boundaries: Boundaries) -> None:
        """Keep the boundaries if they are better than the incumbent."""
        value = self._problem.evaluate(boundaries)
        if self.high is None or value < self.high:
            self.high, self.best = value, boundaries
            self._tell()

    @property
    def closed(self) -> bool:
        """Whether incumbent and bound meet, or are as close as the limits ask."""
        return self.high is not None and self.high - self.low <= self._gap * self.high

    def _tell(self) -> None:
        if self._progress is not None:
            incumbent = self._full.evaluate(self.best) if self.best is not None else None
            self._progress(incumbent, self.low)


def least(low: int, high: int, possible: Callable[[int], bool], clock: Clock) -> int:
    """The least target in low … high that is possible, where ``high`` is and possibility is monotone."""
    while low < high:
        clock.check()
        middle = (low + high) // 2
        if possible(middle):
            high = middle
        else:
            low = middle + 1
    return low
