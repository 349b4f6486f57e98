"""MIP back ends of the chain partition problem, which start from the answer of the dynamic programme."""

from dataclasses import dataclass, replace

from pipeplan_formulations.common.clock import Clock
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
        solver, clock = self.solver, Clock(limits)
        scale, first = scale_for(problem.largest, solver.bits), _checked(problem, start)
        if first is None:
            first = exact.solve(problem, replace(limits, time=limits.time * SHARE), hint, on_progress)

        def report(status: Status, stop: Stop, bound: int, best: Boundaries | None) -> Report[Boundaries]:
            value = None if best is None else problem.evaluate(best)
            return Report(status, stop, value, bound, clock.wall, solver.name, solver.version(), limits.seed, best)

        if first.stop is Stop.INTERRUPT or (problem.paths and first.status is Status.OPTIMAL):
            return report(first.status, first.stop, first.bound, first.solution)
        # Rows round down, so the scaled value of the start is at most its value divided by the unit, rounded up.
        high = -(-(first.objective if first.objective is not None else problem.largest) // scale.unit)
        low = 0 if first.status is Status.INFEASIBLE else min(scale.down(first.bound), high)
        model = linear_model(problem, scale, low, high)
        if model is None:
            return report(Status.INFEASIBLE, Stop.OPTIMALITY, first.bound, None)

        shown = _BestSoFar(on_progress, first.objective, first.bound)

        def on_solution(point: list[float]) -> None:
            boundaries = model.boundaries(point, problem.layers)
            value = problem.evaluate(boundaries)
            if (shown.best is None or value < shown.best) and problem.feasible(boundaries):
                shown.update(value, shown.bound)

        answer = solver.solve(
            model,
            replace(limits, time=clock.left),
            None if first.solution is None else model.point(problem, first.solution, high),
            None if on_progress is None else on_solution,
            None if on_progress is None else lambda bound: shown.update(shown.best, scale.up(bound)),
        )
        found = [first.solution] if first.solution is not None else []
        if answer.status is Status.INFEASIBLE and not found:
            return report(Status.INFEASIBLE, Stop.OPTIMALITY, first.bound, None)
        if answer.status is Status.INFEASIBLE:
            return report(Status.FEASIBLE, Stop.ERROR, problem.lower_bound(), found[0])
        if answer.point is not None:
            boundaries = model.boundaries(answer.point, problem.layers)
            # Bytes beyond the solver's integers are rounded down, so its solution may exceed a limit.
            found += [boundaries] if problem.feasible(boundaries) else []
        bound = max(first.bound, scale.up(answer.bound))
        if not found:
            return report(Status.UNKNOWN, answer.stop, bound, None)
        best = min(found, key=problem.evaluate)
        value = problem.evaluate(best)
        if bound >= value:
            return report(Status.OPTIMAL, Stop.OPTIMALITY, value, best)
        return report(Status.FEASIBLE, answer.stop, bound, best)


def _checked(problem: ChainPartition, start: Report[Boundaries] | None) -> Report[Boundaries] | None:
    """Return the start after checking its partition; raise ``ValueError`` if that is wrong."""
    if start is not None and start.solution is not None:
        if not problem.feasible(start.solution):
            raise ValueError(f"the start {start.solution} is not a partition that fits the memory limit")
        if problem.evaluate(start.solution) != start.objective:
            raise ValueError(f"the start is worth {problem.evaluate(start.solution)}, not {start.objective}")
    return start


@dataclass
class _BestSoFar:
    """Best value and bound so far, reported to ``on_progress`` when one of them improves."""

    on_progress: Progress | None
    best: int | None
    bound: int

    def update(self, best: int | None, bound: int) -> None:
        """Call ``on_progress`` if the value or the bound is better."""
        better = (best, max(bound, self.bound))
        if self.on_progress is not None and better != (self.best, self.bound):
            self.best, self.bound = better
            self.on_progress(self.best, self.bound if self.best is None else min(self.bound, self.best))
