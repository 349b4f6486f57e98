"""Back ends for the graph partition by a MIP solver, started from the warm start."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.mip.closing import close
from pipeplan_formulations.common.mip.model import MipSolver
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop
from pipeplan_formulations.common.scaling import scale_for
from pipeplan_formulations.graph.bounds import lower_bound
from pipeplan_formulations.graph.instance import GraphPartition, Stages
from pipeplan_formulations.graph.prefix import prefix_model
from pipeplan_formulations.graph.warm import after_warm_start, open_bracket


@dataclass(frozen=True)
class ByRows:
    """Back end that builds the linear model of `prefix` and calls a solver."""

    solver: MipSolver

    def solve(
        self, problem: GraphPartition, limits: Limits, hint: Stages | None = None, on_progress: Progress | None = None
    ) -> Report[Stages]:
        """Minimise T under order, pools and memory limit; see `exact.solve` for the parameters."""
        bracket = open_bracket(problem, limits, on_progress, hint)
        stop = after_warm_start(problem, bracket, partial(search, solver=self.solver))
        return bracket.report(stop, self.solver.name, self.solver.version())


def search(problem: GraphPartition, bracket: Bracket[Stages], solver: MipSolver, seconds: float | None = None) -> Stop:
    """Let the solver close the bracket within ``seconds``, or the time that is left; return the stop reason."""
    if bracket.closed:
        return Stop.OPTIMALITY
    scale = scale_for(problem.largest, solver.bits)
    # The model rounds down, so the scaled value of a solution is at most its value, rounded up.
    high, began = -(-min(bracket.ceiling, problem.largest) // scale.unit), bracket.clock.wall
    model = prefix_model(problem, scale, min(scale.down(bracket.low), high), high, bracket.ceiling)
    start = None if bracket.best is None else model.point(bracket.best, high)
    left = _left(bracket, began, seconds)
    return close(bracket, solver, model.rows, scale, model.read, start, lower_bound(problem), left)


def search_shape(
    problem: GraphPartition, bracket: Bracket[Stages], solver: MipSolver, seconds: float, shape: Sequence[int]
) -> Stop:
    """Search better solutions whose stages have these modes, from front to back; return the stop reason."""
    scale, better, began = scale_for(problem.largest, solver.bits), bracket.ceiling - 1, bracket.clock.wall
    high = -(-min(better, problem.largest) // scale.unit)
    model = prefix_model(problem, scale, min(scale.down(bracket.low), high), high, better, shape)
    own = open_bracket(problem, bracket.limits)
    stop = close(own, solver, model.rows, scale, model.read, None, 0, _left(bracket, began, seconds))
    if own.best is not None:
        bracket.offer(own.best)
    return stop


def _left(bracket: Bracket[Stages], began: float, seconds: float | None) -> float:
    """Seconds for the solver: it reads the model before it looks at its limit, in less time than building it took."""
    left = bracket.clock.left - (bracket.clock.wall - began)
    return left if seconds is None else min(seconds, left)
