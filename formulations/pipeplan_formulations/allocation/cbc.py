"""The chain allocation problem by CBC, depth by depth: the same rows, a second opinion from another kind of solver."""

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.mip.depth_model import DepthModel
from pipeplan_formulations.allocation.place import Allocation
from pipeplan_formulations.allocation.suffix_bounds.by_depth import Outcome, solve_by_depth
from pipeplan_formulations.common.cbc_process import proven, run_cbc
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop
from pipeplan_formulations.common.solvers import cbc_version, pulp
from pipeplan_formulations.graph.rows import Row, Rows

NAME = "cbc"
BITS = 40
"""Scaled objectives stay below 2^BITS, far inside the integers that a double holds."""


def solve(
    problem: ChainAllocation, limits: Limits, hint: Allocation | None = None, progress: Progress | None = None
) -> Report[Allocation]:
    """Minimise T under (1) to (4), or the bottleneck; see `exact.solve` for the parameters.

    CBC 2.10.3 has been seen to prove wrong optima when it is given a first solution, so it gets none.
    """
    return solve_by_depth(problem, limits, hint, progress, BITS, NAME, cbc_version(), _run)


def _run(model: DepthModel, limits: Limits) -> Outcome:
    module, rows = pulp(), model.rows
    # Times become fractions of the largest T, so that CBC's absolute tolerances mean relative ones.
    size = max(rows.highs[model.time], 1) / 1e4
    lp = module.LpProblem("allocation", module.LpMinimize)
    variables = [
        lp.add_variable(f"x{v}", low, high, module.LpInteger) if switch else lp.add_variable(f"t{v}", low / size)
        for v, (low, high, switch) in enumerate(zip(rows.lows, rows.highs, rows.switches, strict=True))
    ]
    for row in rows.rows:
        terms, least = _unconditional(row, rows)
        unit = size if model.time in terms else max(map(abs, terms.values()), default=1)
        scaled = {variables[v]: c * (size if v == model.time else 1.0) / unit for v, c in terms.items()}
        total = module.LpAffineExpression(scaled) - least / unit
        lp += (total == 0) if row.equal else (total >= 0)
    lp.setObjective(module.LpAffineExpression({variables[model.time]: 1}))
    answer = run_cbc(lp, variables, max(limits.time, 0.1), limits)
    if answer.infeasible:
        return Outcome(None, None, Stop.OPTIMALITY)
    claimed = answer.bound
    if answer.optimal and answer.point is not None and limits.gap == 0:
        claimed = max(claimed, answer.point[model.time])
    unit = size * model.scale.unit
    stop = Stop.INTERRUPT if answer.interrupted else Stop.TIME if answer.late or answer.point is None else Stop.GAP
    return Outcome(answer.point, proven(claimed * unit, unit), stop)


def _unconditional(row: Row, rows: Rows) -> tuple[dict[int, int], int]:
    """The row with its conditions inside: where one of them is 0, it asks for no more than always holds."""
    terms, least = dict(row.terms), row.least
    slack = least - rows.floor(terms)
    for v in row.when:
        terms[v] = terms.get(v, 0) - slack
        least -= slack
    return terms, least
