"""CBC adapter for linear models, through PuLP.

CBC gets no hint: given a first solution, CBC 2.10.3 has reported feasible problems as infeasible, and the start as
optimal when it was not.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pipeplan_formulations.common.cbc_process import proven, run_cbc
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.mip.model import Answer, LinearModel, MipSolver
from pipeplan_formulations.common.mip.scaled import Scaled
from pipeplan_formulations.common.report import Limits, Status, Stop
from pipeplan_formulations.common.solvers import cbc_version, pulp

LEAST_TIME = 0.1
"""Least time limit of CBC, in seconds."""


def solve_cbc(
    model: LinearModel,
    limits: Limits,
    hint: Sequence[int] | None = None,
    on_solution: Callable[[list[float]], None] | None = None,
    on_bound: Callable[[int], None] | None = None,
    preprocess: bool = True,
) -> Answer:
    """Solve the model; see `Solve` for the parameters, and `run_cbc` for ``preprocess``."""
    del hint, on_solution, on_bound  # see above
    clock, scaled = Clock(limits), Scaled(model)
    lp, variables = _written(scaled)
    lp.setObjective(pulp().LpAffineExpression({variables[model.objective]: 1}))
    answer = run_cbc(lp, variables, max(clock.left, LEAST_TIME), limits, preprocess=preprocess)
    low = model.lows[model.objective]
    if answer.infeasible:
        return Answer(Status.INFEASIBLE, Stop.OPTIMALITY, low, None)
    claimed, point = answer.bound, None
    if answer.point is not None:
        point = scaled.point(answer.point)
        if answer.optimal:  # CBC stops once the bound is within the gap of its solution
            claimed = max(claimed, answer.point[model.objective] * (1 - limits.gap))
    status = Status.UNKNOWN if point is None else Status.OPTIMAL if answer.optimal else Status.FEASIBLE
    stop = Stop.EXHAUSTED if answer.crashed else Stop.GAP
    if answer.interrupted:
        stop = Stop.INTERRUPT
    elif answer.late or clock.left <= 0:
        stop = Stop.TIME
    return Answer(status, stop, max(low, proven(claimed * scaled.unit, scaled.unit)), point)


def _written(scaled: Scaled) -> tuple[Any, list[Any]]:
    """The PuLP problem and its variables."""
    module = pulp()
    lp = module.LpProblem("model", module.LpMinimize)
    variables = [
        lp.add_variable(
            column.name, column.low, column.high, module.LpInteger if column.integer else module.LpContinuous
        )
        for column in scaled.columns
    ]
    for row in scaled.rows:
        total = module.LpAffineExpression({variables[v]: c for v, c in row.terms.items()}) + row.constant
        lp += (total == 0) if row.equal else (total >= 0)
    return lp, variables


CBC = MipSolver("cbc", cbc_version, 40, solve_cbc)
