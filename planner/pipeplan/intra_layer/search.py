"""Lines in order of their bounds: each is solved, simulated, and closed once its bound reaches the best plan.

::

    line opened      exact method without (6)        bound, shares  ──▶ simulate ──▶ best plan
    line again       CBC with the path cuts so far   bound, shares  ──▶ simulate ──▶ best plan, another path cut

The critical path of a simulation is an inequality that all shares on the same line obey (equation (6) of the problem),
so bound and simulation approach one another. Two-lane schedules need none: their bound and simulation nearly agree.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from pipeplan.intra_layer.balanced import balanced
from pipeplan.intra_layer.channels import channels
from pipeplan.intra_layer.judge import JudgedLine, judge
from pipeplan.intra_layer.line import Line
from pipeplan.job import Objective
from pipeplan.model import Model
from pipeplan.paths import find_path_cut
from pipeplan_formulations.common.branch_and_bound import BranchAndBound, Step
from pipeplan_formulations.fractional import Positions, cbc, exact, rounded
from pipeplan_formulations.partition import PathCut
from pipeplan_formulations.report import Limits, Report, Status, Stop

SLICE = 10.0
"""Seconds that one step of one line may take at most."""
FINE = 1e-5
"""Relative gap at which a line's own problem is solved well enough."""


@dataclass
class LineNode:
    """A line that may still hold the best plan; the first one listed comes first among equal bounds."""

    bound: int
    rank: tuple[int, ...]
    line: Line
    relaxed: bool = False
    paths: list[PathCut] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class LineSearch(BranchAndBound[LineNode, JudgedLine]):
    """Branch and bound over lines; ``value`` begins with that of the best plan known.

    Attributes
    ----------
    asked : callable
        Whether a plan on a line answers the question.
    solved : int
        Lines that were solved.
    """

    model: Model
    asked: Callable[[Line], bool] = lambda _: True
    solved: int = 0

    def open_all(self, lines: Iterable[Line]) -> None:
        """Open every line, with the bound that costs nothing."""
        for number, line in enumerate(lines):
            self.push(LineNode(_less(line, line.problem.lower_bound()), (number,), line))

    def submit(self, judged: JudgedLine) -> None:
        """Record a simulated plan, unless it lies outside the question."""
        if self.asked(judged.line):
            self.improve(judged, judged.value)

    def advance(self, node: LineNode) -> Step[LineNode]:
        """Solve a line once more; it stays open unless nothing fits or nothing more can be learned."""
        first, node.relaxed = not node.relaxed, True
        self.solved += first
        report = self._exact(node) if first else self._with_paths(node)
        if report.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt
        if report.status is Status.INFEASIBLE:
            return Step.nothing()
        bound = max(node.bound, _less(node.line, report.bound))
        grown, node.bound = bound > node.bound, bound
        learned = report.solution is not None and self._try(node, report.solution)
        return Step.split([node]) if first or grown or learned else Step.leave(bound)

    def _exact(self, node: LineNode) -> Report[Positions]:
        """Without path cuts, from equal shares; not further than it takes to see that the line is no use."""
        line = node.line
        start = balanced(line)
        if start is not None:
            self._try(node, start)
        enough = None if self.value is None else self.value * line.per + line.rounding
        return exact.solve(line.problem, self._limits(), start, enough=enough)

    def _with_paths(self, node: LineNode) -> Report[Positions]:
        problem = replace(node.line.problem, paths=tuple(node.paths))
        return cbc.solve(problem, self._limits(), bound=node.bound)

    def _try(self, node: LineNode, positions: Positions) -> bool:
        """Simulate the shares, as far as layers have channels; True if their critical path is a new inequality."""
        line = node.line
        real = rounded(line.problem, positions, channels(self.model))
        if real is None:
            return False
        judged = judge(line, real)
        self.submit(judged)
        if line.objective is not Objective.STEP or line.family.two_lanes or judged.line is not line:
            return False
        cut = find_path_cut(judged.schedule, judged.pipeline)
        if cut in node.paths:
            return False
        node.paths.append(cut)
        return True

    def _limits(self) -> Limits:
        return replace(self.limits, time=max(0.1, min(self.left, SLICE)), gap=FINE)


def _less(line: Line, bound: int) -> int:
    """The bound of a line's problem in nanoseconds of real tensors."""
    return -(-max(0, bound - line.rounding) // line.per)
