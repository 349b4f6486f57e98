"""MIP back ends of the chain partition problem, which start from the answer of the dynamic programme."""

from dataclasses import dataclass, replace
from functools import partial

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.mip.closing import close
from pipeplan_formulations.common.mip.model import MipSolver
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.common.scaling import scale_for
from pipeplan_formulations.partition import exact
from pipeplan_formulations.partition.instance import ChainPartition
from pipeplan_formulations.partition.linear import linear_model
from pipeplan_formulations.partition.tables import Boundaries

SHARE = 1 / 3
"""Part of the time limit that the dynamic programme may use."""


@dataclass(frozen=True)
class ByRows:
    """Back end that builds the linear model of `linear` and calls a MIP solver."""

    solver: MipSolver

    def solve(
        self,
        problem: ChainPartition,
        limits: Limits,
        hint: Boundaries | None = None,
        on_progress: Progress | None = None,
        start: Report[Boundaries] | None = None,
    ) -> Report[Boundaries]:
        """Minimise T under all inequalities; see `exact.solve` for the other parameters.

        The search begins from ``start``, a report on the same problem. By default that is the dynamic programme's
        report, which bounds the problem without path cuts. If its partition attains that bound with path cuts too, it
        is optimal and the solver is not called. Without path cuts the solver is called even then, to check the claim
        with its own model.

        Raises
        ------
        ValueError
            If the partition of ``start`` breaks the memory limit, or its objective is not the partition's.
        """
        solver, scale = self.solver, scale_for(problem.largest, self.solver.bits)
        bracket = Bracket(problem.feasible_value, limits, on_progress)
        first = _checked(problem, start)
        if first is None:
            first = exact.solve(problem, replace(limits, time=limits.time * SHARE), hint, on_progress)
        bracket.low = first.bound
        if first.solution is not None:
            bracket.offer(first.solution)
        stop = first.stop
        if stop is not Stop.INTERRUPT and not (problem.paths and first.status is Status.OPTIMAL):
            # Rows round down, so the scaled value of the start is at most its value divided by the unit, rounded up.
            high = -(-min(bracket.ceiling, problem.largest) // scale.unit)
            low = 0 if first.status is Status.INFEASIBLE else min(scale.down(first.bound), high)
            model = linear_model(problem, scale, low, high)
            if model is None:
                bracket.impossible, stop = True, Stop.OPTIMALITY
            else:
                read = partial(model.boundaries, layers=problem.layers)
                point = None if first.solution is None else model.point(problem, first.solution, high)
                stop = close(bracket, solver, model, scale, read, point, problem.lower_bound())
        return bracket.report(stop, solver.name, solver.version())


def _checked(problem: ChainPartition, start: Report[Boundaries] | None) -> Report[Boundaries] | None:
    """Return the start after checking its partition; raise ``ValueError`` if that is wrong."""
    if start is not None and start.solution is not None:
        if not problem.feasible(start.solution):
            raise ValueError(f"the start {start.solution} is not a partition that fits the memory limit")
        if problem.evaluate(start.solution) != start.objective:
            raise ValueError(f"the start is worth {problem.evaluate(start.solution)}, not {start.objective}")
    return start
