"""The interval that holds the optimum, who is told when it shrinks, and the report that it becomes."""

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.graph.bounds import lower_bound
from pipeplan_formulations.graph.instance import GraphPartition, Stages


class Bracket:
    """``low`` ≤ optimum ≤ ``high``, the value of ``best`` (None before there is one).

    ``impossible`` is set once it is proved that no solution exists.
    """

    def __init__(
        self, problem: GraphPartition, limits: Limits, progress: Progress | None = None, hint: Stages | None = None
    ) -> None:
        self.problem, self.limits, self._progress = problem, limits, progress
        self.clock = Clock(limits)
        self.free = lower_bound(problem)
        self.low = self.free
        self.high: int | None = None
        self.best: Stages | None = None
        self.impossible = bool(problem.depths) and min(problem.depths) > problem.most_stages
        if hint is not None and problem.feasible(hint):
            self.offer(hint)

    def offer(self, stages: Stages) -> None:
        """Keep the stages if they are better than the incumbent."""
        value = self.problem.evaluate(stages)
        if self.high is None or value < self.high:
            self.high, self.best = value, stages
            self._tell()

    def raise_low(self, low: int) -> None:
        """Everything below ``low`` is proved impossible."""
        low = low if self.high is None else min(low, self.high)
        if low > self.low:
            self.low = low
            self._tell()

    @property
    def ceiling(self) -> int:
        """A load that a better solution stays below."""
        return self.problem.largest + 1 if self.high is None else self.high

    @property
    def closed(self) -> bool:
        """Whether there is nothing left to find, or the gap is as small as asked."""
        return self.impossible or (self.high is not None and self.high - self.low <= self.limits.gap * self.high)

    def report(self, stop: Stop, backend: str, version: str) -> Report[Stages]:
        """What is known by now; ``stop`` says why no more was found out, where that is so."""
        if self.best is None:
            status = Status.INFEASIBLE if self.impossible else Status.UNKNOWN
            stop = Stop.OPTIMALITY if self.impossible else stop
        elif self.low == self.high:
            status, stop = Status.OPTIMAL, Stop.OPTIMALITY
        else:
            status = Status.FEASIBLE
        wall, seed = self.clock.wall, self.limits.seed
        return Report(status, stop, self.high, self.low, wall, backend, version, seed, self.best)

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self.high, self.low)
