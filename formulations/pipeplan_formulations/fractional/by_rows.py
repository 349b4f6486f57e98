"""Back ends for the fractional partition by a MIP solver: integer places; shares real or parts of a layer."""

import math
from dataclasses import dataclass, replace

import numpy as np

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.mip.model import MipSolver
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.common.scaling import Scale, scale_for
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.fractional.instance import FractionalPartition, Positions, whole
from pipeplan_formulations.fractional.linear import FractionalModel, linear_model
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
        on_progress: Progress | None = None,
        bound: int = 0,
    ) -> Report[Positions]:
        """Minimise T; see `exact.solve` for the first parameters.

        ``bound`` is a lower bound already known to the caller. The solver gets no start (see docs/bounds/solvers.md).
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
        # The solver's shares, corrected for its tolerance. Where memory is too tight for that, strict rows of a problem
        # with a little less memory give shares that hold. Then the bound in units of the problem.
        if answer.point is not None:
            shares = [self._positions(problem, model, answer.point)]
            if shares[0] is None or self._misses(problem, shares[0], answer.point[model.objective]):
                strict = linear_model(self._tightened(problem), scale.unit, 0, parts, strict=True)
                again = solver.solve(strict, replace(limits, time=clock.left)).point
                shares += [] if again is None else [self._positions(problem, strict, again)]
            found += [positions for positions in shares if positions is not None]
        stop, bound = (Stop.ERROR, low) if answer.status is Status.INFEASIBLE else (answer.stop, answer.bound)
        bound = max(low, math.ceil(bound * scale.unit / model.whole - 0.5))
        if not found:
            return report(Status.UNKNOWN, stop, None, bound, None)
        # The best solution decides the value. If the solver proved optimality, it also closes the gap of rounding.
        best = min(found, key=problem.evaluate)
        proved = answer.status is Status.OPTIMAL and limits.gap == 0
        value = max(bound if proved else low, whole(problem.evaluate(best)))
        bound = min(bound, value)
        if on_progress is not None:
            on_progress(value, bound)
        if bound == value:
            return report(Status.OPTIMAL, Stop.OPTIMALITY, value, bound, best)
        return report(Status.FEASIBLE, stop, value, bound, best)

    def _positions(self, problem: FractionalPartition, model: FractionalModel, point: list[float]) -> Positions | None:
        """Positions at the point or close to it; None if none of those tried satisfies the memory limit."""
        return nudged(problem, model.positions(point), 1 / self.parts if self.parts else STEP)

    def _misses(self, problem: FractionalPartition, positions: Positions, value: float) -> bool:
        """True if real shares cost more than in the model: at the limit of on-chip memory, weights are streamed."""
        return not self.parts and problem.evaluate(positions) > value * (1 + 4 * STEP) + 1

    def _tightened(self, problem: FractionalPartition) -> FractionalPartition:
        """Same problem with less memory, by as much as two boundaries that are off by `STEP` can take."""
        if self.parts:
            return problem
        held = int(problem.in_flight.max()) * (problem.saved + problem.bytes_own)
        margin = math.ceil(2 * STEP * int((problem.resident + held + problem.workspace + problem.weights).max()))
        limit, on_chip = (
            np.where(size < UNLIMITED, np.maximum(size - margin, 0), UNLIMITED)
            for size in (problem.limit, problem.on_chip)
        )
        return replace(problem, limit=limit, on_chip=on_chip)
