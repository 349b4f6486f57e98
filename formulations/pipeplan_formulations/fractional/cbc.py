"""CBC back end of the fractional partition: integer places of the boundaries, real shares, path cuts as rows."""

import math
from dataclasses import replace

import numpy as np

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.mip.cbc import CBC, solve_cbc
from pipeplan_formulations.common.report import Limits, Report, Status, Stop
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.fractional.instance import FractionalPartition, Positions, whole
from pipeplan_formulations.fractional.linear import FractionalModel, linear_model
from pipeplan_formulations.fractional.rounding import nudged

STEP = 2e-6
"""Possible error of shares: CBC's tolerance, and the eight digits of its output."""


def solve(problem: FractionalPartition, limits: Limits, bound: int = 0) -> Report[Positions]:
    """Minimise T; ``bound`` is a lower bound that is known already. CBC gets no start (see docs/bounds/solvers.md)."""
    clock, low = Clock(limits), max(problem.lower_bound(), bound)
    model = linear_model(problem, low)
    answer = solve_cbc(model, replace(limits, time=clock.left), preprocess=False)

    def report(status: Status, stop: Stop, value: int | None, bound: int, best: Positions | None) -> Report[Positions]:
        return Report(status, stop, value, bound, clock.wall, CBC.name, CBC.version(), limits.seed, best)

    if answer.status is Status.INFEASIBLE:
        return report(Status.INFEASIBLE, Stop.OPTIMALITY, None, low, None)
    # The shares, corrected for CBC's tolerance. Where memory is too tight for that, a problem with a little less memory
    # gives shares that hold.
    tried = []
    if answer.point is not None:
        tried = [_positions(problem, model, answer.point)]
        if tried[0] is None or _misses(problem, tried[0], answer.point[model.objective]):
            less = linear_model(_tightened(problem), 0)
            again = solve_cbc(less, replace(limits, time=clock.left), preprocess=False).point
            tried += [] if again is None else [_positions(problem, less, again)]
    found = [positions for positions in tried if positions is not None]
    bound = max(low, answer.bound)
    if not found:
        return report(Status.UNKNOWN, answer.stop, None, bound, None)
    # The best solution decides the value. If CBC proved optimality, it also closes the gap of its tolerance.
    best = min(found, key=problem.evaluate)
    proved = answer.status is Status.OPTIMAL and limits.gap == 0
    value = max(bound if proved else low, whole(problem.evaluate(best)))
    bound = min(bound, value)
    if bound == value:
        return report(Status.OPTIMAL, Stop.OPTIMALITY, value, bound, best)
    return report(Status.FEASIBLE, answer.stop, value, bound, best)


def _positions(problem: FractionalPartition, model: FractionalModel, point: list[float]) -> Positions | None:
    """Positions at the point or close to it; None if none of those tried satisfies the memory limit."""
    return nudged(problem, model.positions(point), STEP)


def _misses(problem: FractionalPartition, positions: Positions, value: float) -> bool:
    """True if the shares cost more than in the model: at the limit of on-chip memory, weights are streamed."""
    return problem.evaluate(positions) > value * (1 + 4 * STEP) + 1


def _tightened(problem: FractionalPartition) -> FractionalPartition:
    """Same problem with less memory, by as much as two boundaries that are off by `STEP` can take."""
    held = int(problem.in_flight.max()) * (problem.saved + problem.bytes_own)
    margin = math.ceil(2 * STEP * int((problem.resident + held + problem.workspace + problem.weights).max()))
    limit, on_chip = (
        np.where(size < UNLIMITED, np.maximum(size - margin, 0), UNLIMITED) for size in (problem.limit, problem.on_chip)
    )
    return replace(problem, limit=limit, on_chip=on_chip)
