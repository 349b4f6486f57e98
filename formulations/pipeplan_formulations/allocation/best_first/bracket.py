"""The interval that holds the optimum, and the allocations found on the way."""

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.place import Allocation
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.recomputation import IMPOSSIBLE
from pipeplan_formulations.common.report import Limits, Progress


class Bracket:
    """``low`` ≤ optimum ≤ ``high``, the value of ``best``.

    Attributes
    ----------
    low : int
        Proven.
    cutoff : int or None
        Values from here on do not matter: once ``low`` gets there, there is nothing more to do.
    """

    def __init__(
        self, problem: ChainAllocation, limits: Limits, progress: Progress | None, cutoff: int | None = None
    ) -> None:
        self.problem = problem
        self._gap = limits.gap
        self._progress = progress
        self.clock = Clock(limits)
        self.cutoff = cutoff
        self.low = 0
        self.high: int | None = None
        self.best: Allocation | None = None

    def raise_low(self, low: int) -> None:
        """Everything below ``low`` is proven impossible."""
        low = low if self.high is None else min(low, self.high)
        if low > self.low:
            self.low = low
            self._tell()

    def offer(self, stages: Allocation) -> int:
        """Keep an allocation if it is the best one; its value, `IMPOSSIBLE` if some stage does not fit after all."""
        if None in self.problem.recompute(stages):
            return IMPOSSIBLE
        value = self.problem.evaluate(stages)
        if self.high is None or value < self.high:
            self.high, self.best = value, stages
            self._tell()
        return value

    def offer_traced(self, traced: tuple[int, Allocation] | None) -> None:
        """The same of one that comes with a bound on its value, if that promises anything."""
        if traced is not None and (self.high is None or traced[0] < self.high):
            self.offer(traced[1])

    @property
    def horizon(self) -> int:
        """Values from here on do not matter: the incumbent's, or the cutoff."""
        return self.ceiling if self.cutoff is None else min(self.ceiling, self.cutoff)

    @property
    def ceiling(self) -> int:
        """A value that a better allocation stays below."""
        return self.problem.largest + 1 if self.high is None else self.high

    @property
    def beyond(self) -> bool:
        """Whether nothing below the cutoff is left."""
        return self.cutoff is not None and self.low >= self.cutoff

    @property
    def closed(self) -> bool:
        """Whether incumbent and bound meet, or are as close as the limits ask, or nothing below the cutoff is left."""
        return self.beyond or (self.high is not None and self.high - self.low <= self._gap * self.high)

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self.high, self.low)
