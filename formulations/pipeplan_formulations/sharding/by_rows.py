"""Back ends for the least weighted sum by a MIP solver."""

from dataclasses import dataclass, replace

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.mip.model import MipSolver
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.common.scaling import scale_for
from pipeplan_formulations.sharding.bounds import open_bracket
from pipeplan_formulations.sharding.instance import Choice, WeightedSharding
from pipeplan_formulations.sharding.linear import linear_model


@dataclass(frozen=True)
class ByRows:
    """Back end that builds the linear model of `linear` and calls a solver."""

    solver: MipSolver

    def solve(
        self,
        problem: WeightedSharding,
        limits: Limits,
        hint: Choice | None = None,
        on_progress: Progress | None = None,
    ) -> Report[Choice]:
        """Minimise the weighted sum under the caps; see `pipeplan_formulations.sharding.solve`."""
        bracket = open_bracket(problem, limits, on_progress, hint)
        stop = search(problem, bracket, self.solver)
        return bracket.report(stop, self.solver.name, self.solver.version())


def search(problem: WeightedSharding, bracket: Bracket[Choice], solver: MipSolver) -> Stop:
    """Let the solver close the bracket in the time that is left; return why it stopped.

    If it reports infeasibility although a solution is known, its answer is discarded (`Stop.ERROR`).
    """
    if bracket.closed:
        return Stop.OPTIMALITY
    scale, best = scale_for(problem.largest, solver.bits), bracket.best
    high = scale.down(bracket.ceiling - 1 if best is None else bracket.ceiling)
    model = linear_model(problem, scale, min(scale.down(bracket.low), high), high)

    def on_solution(point: list[float]) -> None:
        bracket.offer(model.read(point))

    answer = solver.solve(
        model,
        replace(bracket.limits, time=bracket.clock.left),
        None if best is None else model.point(best, high),
        on_solution,
        lambda bound: bracket.raise_low(scale.up(bound)),
    )
    if answer.status is Status.INFEASIBLE:
        bracket.impossible = best is None
        return Stop.OPTIMALITY if best is None else Stop.ERROR
    if answer.point is not None:
        on_solution(answer.point)
    bracket.raise_low(scale.up(answer.bound))
    return answer.stop
