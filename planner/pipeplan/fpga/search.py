"""Branch-and-bound over lines of devices that divide layers, after the search over whole layers.

`divide` finds plans of whole layers first, then divided ones that beat them, and one bound over both. Lines are
advanced in the order of their bounds:

::

    line opened      exact method without path cuts        bound, shares  ──▶ simulate ──▶ best plan
    line again       CBC with the path cuts so far   bound, shares  ──▶ simulate ──▶ best plan, another path cut

The critical path of a simulation is an inequality for all shares on the same line (path cuts of the problem). So
bound and simulation approach one another. Two-lane schedules need none: their bound and simulation nearly agree.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InfeasibleError, UndecidedError
from pipeplan.core.job import Job, Objective
from pipeplan.core.model import Model
from pipeplan.core.validate import validate_plan
from pipeplan.costs.sources import sources
from pipeplan.fpga.evaluate import EvaluatedLine, evaluate, plan
from pipeplan.fpga.line import Line
from pipeplan.fpga.searched import with_divided_layers
from pipeplan.fpga.shares import balanced, channels
from pipeplan.fpga.space import lines, require_streams, satisfies
from pipeplan.search.path_cuts import find_path_cut
from pipeplan.search.result import Result
from pipeplan.search.scope import searched
from pipeplan.search.space.spaces import Spaces
from pipeplan_formulations.common.branch_and_bound import BranchAndBound, OnProgress, Step
from pipeplan_formulations.common.report import Limits, Report, Status, Stop
from pipeplan_formulations.fractional import Positions, cbc, exact, rounded
from pipeplan_formulations.partition import PathCut

WHOLE = 0.5
"""Share of the time for the search over whole layers."""
SLICE = 10.0
"""Most seconds of one step of one line."""
FINE = 1e-5
"""Relative gap of a line's own problem."""


@dataclass
class LineNode:
    """A line of devices as a node; among equal bounds the first in the list comes first."""

    bound: int
    rank: tuple[int, ...]
    line: Line
    relaxed: bool = False
    paths: list[PathCut] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class LineSearch(BranchAndBound[LineNode, EvaluatedLine]):
    """Branch-and-bound over lines; ``value`` starts at that of the best plan of whole layers.

    Attributes
    ----------
    inside : callable
        Returns True if a plan on a line lies inside the searched space.
    solved : int
        Number of lines that were solved.
    """

    model: Model
    inside: Callable[[Line], bool] = lambda _: True
    solved: int = 0

    def open_all(self, lines: Iterable[Line]) -> None:
        """Open every line, with its cheap lower bound."""
        for number, line in enumerate(lines):
            self.push(LineNode(_less(line, line.problem.lower_bound()), (number,), line))

    def submit(self, evaluated: EvaluatedLine) -> None:
        """Record a simulated plan, unless it lies outside the searched space."""
        if self.inside(evaluated.line):
            self.improve(evaluated, evaluated.value)

    def advance(self, node: LineNode) -> Step[LineNode]:
        """Solve a line once more; it stays open unless it is infeasible or neither bound nor path cuts improved."""
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
        """Solve without path cuts, from shares of equal work; stop when the line cannot beat the incumbent."""
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
        """Simulate the shares, rounded to channels; True if their critical path is a new inequality."""
        line = node.line
        real = rounded(line.problem, positions, channels(self.model))
        if real is None:
            return False
        evaluated = evaluate(line, real)
        self.submit(evaluated)
        if line.objective is not Objective.STEP or line.family.two_lanes or evaluated.line is not line:
            return False
        cut = find_path_cut(evaluated.schedule, evaluated.pipeline)
        if cut in node.paths:
            return False
        node.paths.append(cut)
        return True

    def _limits(self) -> Limits:
        return replace(self.limits, time=max(0.1, min(self.left, SLICE)), gap=FINE)


def _less(line: Line, bound: int) -> int:
    """A bound of a line's problem as a bound on plans in nanoseconds: without rounding, per sample for a bottleneck."""
    return -(-max(0, bound - line.rounding) // line.per)


def divide(
    whole_layers: Callable[[Job, float], Result],
    model: Model,
    cluster: Cluster,
    job: Job,
    limits: Limits,
    on_progress: OnProgress,
) -> Result:
    """Return the better of the best plan of whole layers and the best one that divides layers.

    Parameters
    ----------
    whole_layers : callable
        ``whole_layers(job, seconds)`` solves without division.

    Raises
    ------
    InputError
        If the cluster's devices do not stream, or the job has options that exclude divided layers.
    InfeasibleError
        If no plan of either kind fits.
    """
    began = time.monotonic()
    require_streams(model, cluster, job)
    # Search plans of whole layers first; without a plan, keep the reason and the bound.
    whole, why = None, ""
    whole_bound: int | None = None
    ended = Stop.OPTIMALITY
    try:
        whole = whole_layers(replace(job, intra_layer=False, teams=(1,)), WHOLE * limits.time)
        whole_bound, ended = whole.bound, whole.stop
    except InfeasibleError as reason:
        why = str(reason)
    except UndecidedError as reason:
        whole_bound, ended = reason.bound, Stop(reason.stop)

    def report(value: int | None, bound: int, left: int) -> None:
        on_progress(value, bound if whole_bound is None else min(whole_bound, bound), left)

    # Then search lines in the time left, with the value of the first search as the cutoff.
    left = replace(limits, time=max(0.0, limits.time - (time.monotonic() - began)))
    known = None if whole is None else whole.value
    search = LineSearch(left, report, value=known, model=model, inside=lambda line: satisfies(line, job))
    if not job.replicas or 1 in job.replicas:
        search.open_all(lines(model, cluster, job))
        if ended is not Stop.INTERRUPT:
            search.run()
    stops: list[Stop] = [search.stop] if search.stop in (Stop.TIME, Stop.INTERRUPT) else []
    stops += [ended] if ended not in (Stop.OPTIMALITY, Stop.GAP) else []
    return _result(whole, whole_bound, search, model, cluster, job, time.monotonic() - began, stops, why)


def _result(
    whole: Result | None,
    whole_bound: int | None,
    search: LineSearch,
    model: Model,
    cluster: Cluster,
    job: Job,
    wall: float,
    stops: Sequence[Stop],
    why: str,
) -> Result:
    bounds = [*([] if whole_bound is None else [whole_bound]), *([] if search.refuted else [search.bound])]
    if whole is None and search.incumbent is None:
        if stops or not search.refuted:
            raise UndecidedError(stops[0] if stops else Stop.EXHAUSTED, min(bounds, default=0))
        raise InfeasibleError(f"{why}\nNo line of devices that divides layers fits either.")
    # The bound covers both searches; status and stop reason follow from it.
    value = search.value or 0
    bound = min([value, *bounds])
    reached = Stop.GAP if value - bound <= search.limits.gap * value else Stop.EXHAUSTED
    stop = Stop.OPTIMALITY if bound == value else stops[0] if stops else reached
    status = Status.OPTIMAL if bound == value else Status.FEASIBLE
    spaces = Spaces(model, cluster, replace(job, intra_layer=False, teams=(1,)))
    reach = whole.searched if whole else searched(spaces)
    runners_up = whole.runners_up if whole else ()
    if search.incumbent is None:
        assert whole is not None
        best = replace(whole.plan, bound=bound)
    else:
        best = plan(model, job, search.incumbent, bound)
        runners_up = ((search.incumbent.line.label, value), *runners_up)
        validate_plan(best, model, cluster)
    return Result(
        plan=best,
        job=job,
        status=status,
        stop=stop,
        value=value,
        bound=bound,
        wall=wall,
        backend=whole.backend if whole else "exact",
        searched=with_divided_layers(reach, search.solved),
        costs=sources(model, cluster, spaces.lowest.sizes, job),
        baselines=whole.baselines if whole else {},
        runners_up=runners_up,
    )
