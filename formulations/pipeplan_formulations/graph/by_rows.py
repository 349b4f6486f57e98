"""Back ends for the graph partition by a MIP solver, started from the warm start."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.mip.model import Answer, MipSolver
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
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


def search(
    problem: GraphPartition,
    bracket: Bracket[Stages],
    solver: MipSolver,
    seconds: float | None = None,
) -> Stop:
    """Let the solver close the bracket within ``seconds``, or the time that is left; return the stop reason.

    If the solver reports infeasibility although a solution is known, its bounds are discarded (`Stop.ERROR`).
    """
    if bracket.closed:
        return Stop.OPTIMALITY
    answer = _answered(problem, bracket, solver, seconds, ())
    if answer is None:
        return Stop.TIME
    if answer.status is Status.INFEASIBLE and bracket.best is not None:
        bracket.low = lower_bound(problem)
        return Stop.ERROR
    if answer.status is Status.INFEASIBLE:
        bracket.impossible = True
        return Stop.OPTIMALITY
    bracket.raise_low(answer.bound)
    return answer.stop


def search_shape(
    problem: GraphPartition,
    bracket: Bracket[Stages],
    solver: MipSolver,
    seconds: float,
    shape: Sequence[int],
) -> Stop:
    """Search better solutions whose stages have these modes, from front to back; return the stop reason."""
    answer = _answered(problem, bracket, solver, seconds, shape)
    return Stop.TIME if answer is None else answer.stop


def _answered(
    problem: GraphPartition,
    bracket: Bracket[Stages],
    solver: MipSolver,
    seconds: float | None,
    shape: Sequence[int],
) -> Answer | None:
    """The solver's answer with its bound in the unit of times; None if there is no time. Solutions are offered.

    With a ``shape`` only better solutions of it are searched, and no bounds are reported.
    """
    scale = scale_for(problem.largest, solver.bits)
    # The model rounds down, so the scaled value of a solution is at most its value, rounded up.
    ceiling = bracket.ceiling - 1 if shape else bracket.ceiling
    high = -(-min(ceiling, problem.largest) // scale.unit)
    began = bracket.clock.wall
    model = prefix_model(problem, scale, min(scale.down(bracket.low), high), high, ceiling, shape)

    def on_solution(point: list[float]) -> None:
        stages = model.read(point)
        if problem.feasible(stages):
            bracket.offer(stages)

    # The solver reads the model before it looks at its limit, which takes less time than building it.
    left = bracket.clock.left - (bracket.clock.wall - began)
    if left <= 0:
        return None
    answer = solver.solve(
        model.rows,
        replace(bracket.limits, time=left if seconds is None else min(seconds, left)),
        None if bracket.best is None or shape else model.point(bracket.best, high),
        on_solution,
        None if shape else lambda bound: bracket.raise_low(scale.up(bound)),
    )
    if answer.point is not None:
        on_solution(answer.point)
    return replace(answer, bound=scale.up(answer.bound))
