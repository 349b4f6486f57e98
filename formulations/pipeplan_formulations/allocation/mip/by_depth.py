"""MIP back ends of the allocation problem: one linear model for each number of stages, and one report."""

from dataclasses import dataclass, replace

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.mip.depth_model import depth_model
from pipeplan_formulations.allocation.place import Allocation
from pipeplan_formulations.allocation.suffix_bounds.refinement import open_bracket
from pipeplan_formulations.common.mip.model import MipSolver
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.common.scaling import scale_for


@dataclass(frozen=True)
class ByDepth:
    """Back end that calls a MIP solver once for each number of stages."""

    solver: MipSolver

    def solve(
        self,
        problem: ChainAllocation,
        limits: Limits,
        hint: Allocation | None = None,
        on_progress: Progress | None = None,
    ) -> Report[Allocation]:
        """Minimise T under all inequalities, or the bottleneck; see `exact.solve` for the parameters."""
        solver, bracket = self.solver, open_bracket(problem, limits, on_progress)
        scale = scale_for(problem.largest, solver.bits)
        bounds: list[int] = []
        stop = Stop.OPTIMALITY
        if hint is not None and problem.feasible(hint):
            bracket.offer(hint)
        fewest = max(1, len(problem.first) + len(problem.last))
        for depth in range(fewest, min(problem.layers, problem.most_flow // problem.widths[0]) + 1):
            # T need not exceed the incumbent.
            most = bracket.high if bracket.high is not None else problem.largest
            model = depth_model(problem, depth, scale, -(-most // scale.unit))
            answer = solver.solve(model.rows, replace(limits, time=bracket.clock.left))
            if answer.point is not None:
                stages = model.read(answer.point)
                if problem.feasible(stages):
                    bracket.offer(stages)
            if answer.status is not Status.INFEASIBLE:
                bounds.append(scale.up(answer.bound))
            if answer.stop not in (Stop.OPTIMALITY, Stop.GAP):
                stop = answer.stop
                bounds.append(0)
                break
        bracket.impossible = stop is Stop.OPTIMALITY and not bounds
        if bounds or bracket.best is not None:
            bracket.raise_low(min([*bounds, bracket.ceiling]))
        found = bracket.best is not None
        return bracket.report(Stop.GAP if found and stop is Stop.OPTIMALITY else stop, solver.name, solver.version())
