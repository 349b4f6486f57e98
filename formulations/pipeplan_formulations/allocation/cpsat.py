"""The chain allocation problem by CP-SAT, depth by depth: an independent opinion on small instances."""

import math

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.mip.depth_model import DepthModel
from pipeplan_formulations.allocation.place import Allocation
from pipeplan_formulations.allocation.suffix_bounds.by_depth import Outcome, solve_by_depth
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop
from pipeplan_formulations.common.scaling import BITS
from pipeplan_formulations.common.solvers import cp_model, cpsat_solver, cpsat_version

NAME = "cpsat"


def solve(
    problem: ChainAllocation, limits: Limits, hint: Allocation | None = None, progress: Progress | None = None
) -> Report[Allocation]:
    """Minimise T under (1) to (4), or the bottleneck; see `exact.solve` for the parameters."""
    return solve_by_depth(problem, limits, hint, progress, BITS, NAME, cpsat_version(), _run)


def _run(model: DepthModel, limits: Limits) -> Outcome:
    cp = cp_model()
    sat = cp.CpModel()
    rows = model.rows
    variables = [
        sat.new_bool_var("") if switch else sat.new_int_var(low, high, "")
        for low, high, switch in zip(rows.lows, rows.highs, rows.switches, strict=True)
    ]
    for row in rows.rows:
        total = cp.LinearExpr.weighted_sum([variables[v] for v in row.terms], list(row.terms.values()))
        constraint = sat.add(total == row.least if row.equal else total >= row.least)
        if row.when:
            constraint.only_enforce_if([variables[v] for v in row.when])
    sat.minimize(variables[model.time])
    solver = cpsat_solver(limits)
    status = solver.solve(sat)
    if status == cp.INFEASIBLE:
        return Outcome(None, None, Stop.OPTIMALITY)
    solved = status in (cp.OPTIMAL, cp.FEASIBLE)
    point = [float(solver.value(v)) for v in variables] if solved else None
    # The integer bound comes as a double, exact below 2^53.
    bound = model.scale.up(math.ceil(solver.best_objective_bound - 0.5))
    return Outcome(point, bound, Stop.GAP if status == cp.OPTIMAL else Stop.TIME)
