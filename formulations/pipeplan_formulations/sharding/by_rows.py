"""Back ends for the least weighted sum by a MIP solver."""

from dataclasses import dataclass

from pipeplan_formulations.common.mip.closing import close
from pipeplan_formulations.common.mip.model import MipSolver
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop
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
        bracket, stop = open_bracket(problem, limits, on_progress, hint), Stop.OPTIMALITY
        if not bracket.closed:
            scale, best = scale_for(problem.largest, self.solver.bits), bracket.best
            high = scale.down(bracket.ceiling - 1 if best is None else bracket.ceiling)
            model = linear_model(problem, scale, min(scale.down(bracket.low), high), high)
            start = None if best is None else model.point(best, high)
            stop = close(bracket, self.solver, model, scale, model.read, start, bracket.low)
        return bracket.report(stop, self.solver.name, self.solver.version())
