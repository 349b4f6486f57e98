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

SLICE = 0.2
"""Share of the time left for one target."""
NARROW = 0.002
"""Range of targets, relative to the largest, at which `climb` ends."""
LEAST = 5.0
"""Seconds that must be left for another target; the rest is for the programme itself."""


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
    target: int | None = None,
) -> Stop:
    """Let the solver close the bracket within ``seconds``, or the time that is left; return the stop reason.

    With a ``target``, only solutions of at most this value are searched: there is one, or the bound rises above it.
    If the solver reports infeasibility although a solution is known, its bounds are discarded (`Stop.ERROR`).
    """
    if bracket.closed:
        return Stop.OPTIMALITY
    answer = _answered(problem, bracket, solver, seconds, target, ())
    if answer is None:
        return Stop.TIME
    if answer.status is Status.INFEASIBLE and target is not None:
        bracket.raise_low(target + 1)
        return Stop.OPTIMALITY
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
    answer = _answered(problem, bracket, solver, seconds, bracket.ceiling - 1, shape)
    return Stop.TIME if answer is None else answer.stop


def _answered(
    problem: GraphPartition,
    bracket: Bracket[Stages],
    solver: MipSolver,
    seconds: float | None,
    target: int | None,
    shape: Sequence[int],
) -> Answer | None:
    """The solver's answer with its bound in the unit of times; None if there is no time. Solutions are offered.

    Bounds are reported only where the model holds every better solution, whatever the shape.
    """
    scale = scale_for(problem.largest, solver.bits)
    # The model rounds down, so the scaled value of a solution is at most its value, rounded up.
    ceiling = bracket.ceiling if target is None else target
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
        None if bracket.best is None or target is not None else model.point(bracket.best, high),
        on_solution,
        None if shape else lambda bound: bracket.raise_low(scale.up(bound)),
    )
    if answer.point is not None:
        on_solution(answer.point)
    return replace(answer, bound=scale.up(answer.bound))


def climb(problem: GraphPartition, bracket: Bracket[Stages], solver: MipSolver) -> Stop:
    """Raise the bound by targets below the incumbent, as a narrow range makes the rows tight; return why it ended.

    A target that is not decided in its share of the time is the end of the range for the next ones. The solver's
    proofs of infeasibility must be exact.
    """
    top = bracket.ceiling
    while not bracket.closed and bracket.clock.left > LEAST and top - bracket.low > 1 + NARROW * top:
        target = (bracket.low + top) // 2
        stop = search(problem, bracket, solver, bracket.clock.left * SLICE, target)
        if stop is Stop.INTERRUPT:
            return stop
        top = min(target if bracket.low <= target else top, bracket.ceiling)
    return search(problem, bracket, solver)
