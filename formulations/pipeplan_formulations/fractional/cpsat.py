"""The fractional chain partition problem by CP-SAT: shares are whole numbers of `PARTS` parts of a layer.

The rows leave out what rounding to parts may add (`linear`), so CP-SAT's bound holds for real shares. What it finds is
judged on the real rows; between the two lies about one part in `PARTS`.
"""

import math
from dataclasses import replace

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.common.scaling import scale_for
from pipeplan_formulations.common.solvers import cp_model, cpsat_solver, cpsat_version
from pipeplan_formulations.fractional.instance import FractionalPartition, Positions, whole
from pipeplan_formulations.fractional.linear import ONE, linear_model
from pipeplan_formulations.fractional.rounding import nudged

NAME = "cpsat"
PARTS = 2**10
"""Parts of each layer."""


def solve(
    problem: FractionalPartition,
    limits: Limits,
    hint: Positions | None = None,
    progress: Progress | None = None,
    bound: int = 0,
) -> Report[Positions]:
    """Same call as every solver of this problem; see `exact.solve`, and `cbc.solve` for ``bound``."""
    clock = Clock(limits)
    start = hint if hint is not None and problem.feasible(hint) else None
    scale = scale_for(problem.largest * PARTS)
    model = linear_model(problem, scale.unit, scale.down(problem.largest) + 1, PARTS)
    cp = cp_model()
    sat = cp.CpModel()
    columns = [sat.new_int_var(0, high, "") for high in model.highs]
    for row in model.rows:
        terms = {i: c for i, c in row.items() if i != ONE and c}
        total = cp.LinearExpr.weighted_sum([columns[i] for i in terms], list(terms.values()))
        sat.add(total + row.get(ONE, 0) >= 0)
    sat.minimize(columns[model.objective])
    solver = cpsat_solver(replace(limits, time=clock.left))
    status = solver.solve(sat)

    low = max(problem.lower_bound(), bound)
    found = [start] if start is not None else []
    if status == cp.INFEASIBLE and not found:
        return Report(Status.INFEASIBLE, Stop.OPTIMALITY, None, low, clock.wall, NAME, cpsat_version(), 0, None)
    if status in (cp.OPTIMAL, cp.FEASIBLE):
        point = [float(solver.value(column)) for column in columns]
        positions = nudged(problem, model.positions(point), 1 / PARTS)
        found += [positions] if positions is not None else []
    if status in (cp.OPTIMAL, cp.FEASIBLE, cp.UNKNOWN):
        low = max(low, math.ceil(solver.best_objective_bound * scale.unit / PARTS - 0.5))
    stop = Stop.GAP if status == cp.OPTIMAL else Stop.TIME
    if not found:
        return Report(Status.UNKNOWN, stop, None, low, clock.wall, NAME, cpsat_version(), limits.seed, None)
    best = min(found, key=problem.evaluate)
    value = whole(problem.evaluate(best))
    low = min(low, value)
    if progress is not None:
        progress(value, low)
    status, stop = (Status.OPTIMAL, Stop.OPTIMALITY) if low == value else (Status.FEASIBLE, stop)
    return Report(status, stop, value, low, clock.wall, NAME, cpsat_version(), limits.seed, best)
