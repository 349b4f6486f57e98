"""Lines in order of their bounds: each is solved, simulated, and closed once its bound reaches the best plan.

::

    line opened      exact method without (6)        bound, shares  ──▶ simulate ──▶ best plan
    line again       CBC with the path cuts so far   bound, shares  ──▶ simulate ──▶ best plan, another path cut

The critical path of a simulation is an inequality that all shares on the same line obey (equation (6) of the problem),
so bound and simulation approach one another. Two-lane schedules need none: their bound and simulation nearly agree.
"""

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pipeplan.core.job import Objective
from pipeplan.core.model import Model
from pipeplan.search.intra_layer.balanced import balanced
from pipeplan.search.intra_layer.channels import channels
from pipeplan.search.intra_layer.judge import JudgedLine, judge
from pipeplan.search.intra_layer.line import Line
from pipeplan.search.path_cuts import find_path_cut
from pipeplan_formulations.common.report import Limits, Report, Status, Stop
from pipeplan_formulations.common.signals import interruptible
from pipeplan_formulations.fractional import Positions, cbc, exact, rounded
from pipeplan_formulations.partition import PathCut

Watch = Callable[[int | None, int, int], None]
SLICE = 10.0
"""Seconds that one step of one line may take at most."""
FINE = 1e-5
"""Relative gap at which a line's own problem is solved well enough."""


@dataclass(order=True)
class _Open:
    """A line that may still hold the best plan."""

    bound: int
    number: int
    line: Line = field(compare=False)
    relaxed: bool = field(default=False, compare=False)
    paths: list[PathCut] = field(default_factory=list, compare=False)


@dataclass
class LineSearch:
    """Best-first over lines, against a value to beat.

    Attributes
    ----------
    asked : callable
        Whether a plan on a line answers the question.
    beat : int or None
        The value of the best plan so far, from wherever it came.
    best : JudgedLine or None
        The best divided plan that beats it.
    opened : int
        Lines that were solved.
    """

    model: Model
    limits: Limits
    watch: Watch
    asked: Callable[[Line], bool] = lambda _: True
    beat: int | None = None
    best: JudgedLine | None = None
    opened: int = 0
    stop: Stop = Stop.OPTIMALITY
    _heap: list[_Open] = field(default_factory=list)
    _settled: int | None = None
    _began: float = field(default_factory=time.monotonic)

    @property
    def bound(self) -> int | None:
        """No line beats this; None if no line fits."""
        known = [self._heap[0].bound] if self._heap else []
        known += [self._settled] if self._settled is not None else []
        return min(known, default=None)

    def run(self, every: list[Line]) -> None:
        """Search until no line can beat the best plan by more than the gap asked for, or the time is up."""
        self._began = time.monotonic()
        self._heap = [_Open(_less(line, line.problem.lower_bound()), number, line) for number, line in enumerate(every)]
        heapq.heapify(self._heap)
        try:
            while self._heap and (self.beat is None or self._heap[0].bound < self.beat * (1 - self.limits.gap)):
                if self._left() <= 0:
                    self.stop = Stop.TIME
                    return
                with interruptible():
                    self._advance(self._heap[0])
                self._tell()
        except KeyboardInterrupt:
            self.stop = Stop.INTERRUPT

    def offer(self, judged: JudgedLine) -> None:
        """A divided plan that somebody found; forgotten if it is not what was asked for."""
        if not self.asked(judged.line):
            return
        if self.beat is None or judged.value < self.beat:
            self.beat, self.best = judged.value, judged
            self._tell()

    def _advance(self, node: _Open) -> None:
        """One step of the first line of the heap; it stays there unless nothing fits or nothing more can be learned."""
        first, node.relaxed = not node.relaxed, True
        self.opened += first
        report = self._exact(node) if first else self._with_paths(node)
        if report.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt
        if report.status is Status.INFEASIBLE:
            heapq.heappop(self._heap)
            return
        bound = max(node.bound, _less(node.line, report.bound))
        grown, node.bound = bound > node.bound, bound
        learned = report.solution is not None and self._try(node, report.solution)
        if first or grown or learned:
            heapq.heapreplace(self._heap, node)
            return
        heapq.heappop(self._heap)
        self._settled = bound if self._settled is None else min(self._settled, bound)

    def _exact(self, node: _Open) -> Report[Positions]:
        """Without path cuts, from equal shares; not further than it takes to see that the line is no use."""
        line = node.line
        start = balanced(line)
        if start is not None:
            self._try(node, start)
        enough = None if self.beat is None else self.beat * line.per + line.rounding
        return exact.solve(line.problem, self._limits(), start, enough=enough)

    def _with_paths(self, node: _Open) -> Report[Positions]:
        problem = replace(node.line.problem, paths=tuple(node.paths))
        return cbc.solve(problem, self._limits(), bound=node.bound)

    def _try(self, node: _Open, positions: Positions) -> bool:
        """Simulate the shares, as far as layers have channels; True if their critical path is a new inequality."""
        line = node.line
        real = rounded(line.problem, positions, channels(self.model))
        if real is None:
            return False
        judged = judge(line, real)
        self.offer(judged)
        if line.objective is not Objective.STEP or line.family.two_lanes or judged.line is not line:
            return False
        cut = find_path_cut(judged.schedule, judged.pipeline)
        if cut in node.paths:
            return False
        node.paths.append(cut)
        return True

    def _left(self) -> float:
        return self.limits.time - (time.monotonic() - self._began)

    def _limits(self) -> Limits:
        return replace(self.limits, time=max(0.1, min(self._left(), SLICE)), gap=FINE)

    def _tell(self) -> None:
        self.watch(self.beat, self.bound or 0, len(self._heap))


def _less(line: Line, bound: int) -> int:
    """The bound of a line's problem in nanoseconds of real tensors."""
    return -(-max(0, bound - line.rounding) // line.per)
