"""The best orders and the bound while a solver runs, and who is told of them."""

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.schedule.instance import Orders, PipelineSchedule
from pipeplan_formulations.schedule.objective import evaluate, feasible


class Incumbent:
    """What is known of the optimum from both sides.

    Attributes
    ----------
    best : orders or None
    value : int or None
        Theirs, by `evaluate`.
    bound : int
    """

    def __init__(self, problem: PipelineSchedule, limits: Limits, progress: Progress | None) -> None:
        self.problem, self.limits, self.clock, self._progress = problem, limits, Clock(limits), progress
        self.best: Orders | None = None
        self.value: int | None = None
        self.bound = 0

    @property
    def close(self) -> bool:
        """Whether the gap is as small as asked."""
        return self.value is not None and self.value - self.bound <= self.limits.gap * self.value

    @property
    def enough(self) -> int:
        """About the largest value at which it is."""
        return int(self.bound / (1 - self.limits.gap)) if self.limits.gap else self.bound

    def offer(self, orders: Orders) -> None:
        """Keep the orders if they are feasible and better."""
        value = evaluate(self.problem, orders)
        if value is not None and (self.value is None or value < self.value):
            self.best, self.value = orders, value
            self._tell()

    def offer_foreign(self, orders: Orders) -> None:
        """The same for orders that may be of another problem: then they are ignored."""
        if feasible(self.problem, orders):
            self.offer(orders)

    def raise_bound(self, bound: int) -> None:
        """No schedule is worth less."""
        if bound > self.bound:
            self.bound = bound
            self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self.value, self.bound if self.value is None else min(self.bound, self.value))

    def report(self, stop: Stop, backend: str, version: str) -> Report[Orders]:
        """The answer; optimal wherever both sides meet, whatever stopped the solver."""
        bound = self.bound if self.value is None else min(self.bound, self.value)
        status = Status.UNKNOWN if self.value is None else Status.FEASIBLE
        if self.value == bound:
            status, stop = Status.OPTIMAL, Stop.OPTIMALITY
        return Report(status, stop, self.value, bound, self.clock.wall, backend, version, self.limits.seed, self.best)

    def infeasible(self, backend: str, version: str) -> Report[Orders]:
        """The answer where nothing is feasible."""
        wall = self.clock.wall
        return Report(
            Status.INFEASIBLE, Stop.OPTIMALITY, None, self.bound, wall, backend, version, self.limits.seed, None
        )
