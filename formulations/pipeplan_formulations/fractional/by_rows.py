"""Back ends for the fractional partition by a MIP solver: integer places; shares real or parts of a layer."""

import math
from dataclasses import dataclass, replace

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.mip.model import MipSolver
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.common.scaling import Scale, scale_for
from pipeplan_formulations.fractional.instance import FractionalPartition, Positions, whole
from pipeplan_formulations.fractional.linear import linear_model
from pipeplan_formulations.fractional.rounding import nudged

STEP = 2e-6
"""Possible error of real shares: CBC's tolerance, and the eight digits of its output."""
PARTS = 2**10
"""Number of parts of each layer for solvers of integer programmes."""


@dataclass(frozen=True)
class ByRows:
    """Back end that builds the linear model of `linear` and calls a solver.

    If ``parts`` is not 0, shares are multiples of 1 / ``parts`` of a layer. The rows leave out the error of rounding
    to parts, so the solver's bound holds for real shares. Its solution is evaluated on the real problem; the two values
    differ by about one part in ``parts``.
    """

    solver: MipSolver
    parts: int = 0

    def solve(
        self,
        problem: FractionalPartition,
        limits: Limits,
        hint: Positions | None = None,
        progress: Progress | None = None,
        bound: int = 0,
    ) -> Report[Positions]:
        """Minimise T; see `exact.solve` for the first parameters.

        ``bound`` is a lower bound already known to the caller. The solver gets no start (see docs/bounds.md).
        """
        # Build and solve; ``low`` is the lower bound known without the solver.
        solver, parts = self.solver, self.parts
        clock, low = Clock(limits), max(problem.lower_bound(), bound)
        found = [hint] if hint is not None and problem.feasible(hint) else []
        scale = scale_for(problem.largest * parts, solver.bits) if parts else Scale()
        model = linear_model(problem, scale.unit, 0 if parts else low, parts)
        answer = solver.solve(model, replace(limits, time=clock.left))

        def report(
            status: Status, stop: Stop, value: int | None, bound: int, best: Positions | None
        ) -> Report[Positions]:
            return Report(status, stop, value, bound, clock.wall, solver.name, solver.version(), limits.seed, best)

        if answer.status is Status.INFEASIBLE and not found:
            return report(Status.INFEASIBLE, Stop.OPTIMALITY, None, low, None)
        # The solver's shares, corrected for its tolerance; then the bound in units of the problem.
        if answer.point is not None:
            positions = nudged(problem, model.positions(answer.point), 1 / parts if parts else STEP)
            found += [positions] if positions is not None else []
        stop, bound = (Stop.ERROR, low) if answer.status is Status.INFEASIBLE else (answer.stop, answer.bound)
        bound = max(low, math.ceil(bound * scale.unit / model.whole - 0.5))
        if not found:
            return report(Status.UNKNOWN, stop, None, bound, None)
        # The best solution decides the value. If the solver proved optimality, it also closes the gap of rounding.
        best = min(found, key=problem.evaluate)
        proved = answer.status is Status.OPTIMAL and limits.gap == 0
        value = max(bound if proved else low, whole(problem.evaluate(best)))
        bound = min(bound, value)
        if progress is not None:
            progress(value, bound)
        if bound == value:
            return report(Status.OPTIMAL, Stop.OPTIMALITY, value, bound, best)
        return report(Status.FEASIBLE, stop, value, bound, best)
