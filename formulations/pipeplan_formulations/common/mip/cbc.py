"""CBC adapter for linear models, through PuLP: conditions become big-M rows, numbers are scaled to at most about 10^4.

CBC gets no hint: given a first solution, CBC 2.10.3 has reported feasible problems as infeasible, and the start as
optimal when it was not.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pipeplan_formulations.common.cbc_process import proven, run_cbc
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.mip.model import Answer, Kind, LinearModel, MipSolver
from pipeplan_formulations.common.report import Limits, Status, Stop
from pipeplan_formulations.common.solvers import cbc_version, pulp

SIZE = 1e4
"""Approximate largest number in CBC's units, so that its absolute tolerances act as relative ones."""
EXACT = 100_000
"""Largest number that stays an integer; larger ones are not rounded, which weakens the bound by 1e-5 or so."""
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
    clock, unit = Clock(limits), max(1.0, model.magnitude / SIZE)
    scales = _scales(model, unit)
    lp, variables = _variables(model, scales)
    _rows(lp, model, variables, scales)
    lp.setObjective(pulp().LpAffineExpression({variables[model.objective]: 1}))
    answer = run_cbc(lp, variables, max(clock.left, LEAST_TIME), limits, preprocess=preprocess)
    low = model.lows[model.objective]
    if answer.infeasible:
        return Answer(Status.INFEASIBLE, Stop.OPTIMALITY, low, None)
    claimed, point = answer.bound, None
    if answer.point is not None:
        point = [value * scale for value, scale in zip(answer.point, scales, strict=True)]
        if answer.optimal:  # CBC stops once the bound is within the gap of its solution
            claimed = max(claimed, answer.point[model.objective] * (1 - limits.gap))
    status = Status.UNKNOWN if point is None else Status.OPTIMAL if answer.optimal else Status.FEASIBLE
    stop = Stop.EXHAUSTED if answer.crashed else Stop.GAP
    if answer.interrupted:
        stop = Stop.INTERRUPT
    elif answer.late or clock.left <= 0:
        stop = Stop.TIME
    return Answer(status, stop, max(low, proven(claimed * unit, unit)), point)


def _scales(model: LinearModel, unit: float) -> list[float]:
    """CBC's unit of each variable in the model's units: ``unit`` for times, more than 1 for large numbers."""
    return [
        unit if kind is Kind.TIME else 1.0 if high <= EXACT else high / SIZE
        for kind, high in zip(model.kinds, model.highs, strict=True)
    ]


def _variables(model: LinearModel, scales: list[float]) -> tuple[Any, list[Any]]:
    """The PuLP problem and its variables.

    Only small variables have an upper end: a large value exactly at its end may look infeasible in floating point. For
    the same reason, times that rows define begin at 0.
    """
    module = pulp()
    lp = module.LpProblem("model", module.LpMinimize)
    variables = []
    for v, (low, high, kind, scale) in enumerate(zip(model.lows, model.highs, model.kinds, scales, strict=True)):
        if kind is Kind.TIME:
            end = high if v == model.objective and scale == 1 else None
            variables.append(lp.add_variable(f"t{v}", 0 if v in model.defined else low / scale, end))
        elif high > EXACT:
            variables.append(lp.add_variable(f"n{v}", low / scale))
        elif kind is Kind.REAL:
            variables.append(lp.add_variable(f"r{v}", low, high))
        else:
            variables.append(lp.add_variable(f"x{v}", low, high, module.LpInteger))
    return lp, variables


def _rows(lp: Any, model: LinearModel, variables: list[Any], scales: list[float]) -> None:
    """Add clauses and rows, divided so that the objective's coefficient is 1, times are in CBC's unit, others small."""
    affine, time = pulp().LpAffineExpression, scales[model.objective]
    for literals in model.clauses:
        terms = {variables[v if v >= 0 else ~v]: (1 if v >= 0 else -1) for v in literals}
        lp += affine(terms) >= 1 - sum(v < 0 for v in literals)
    for row in model.rows:
        expression = model.unconditional(row)
        scaled = {v: c * scales[v] for v, c in expression.terms.items() if c}
        if model.objective in scaled:
            unit = abs(scaled[model.objective])
        elif any(model.kinds[v] is Kind.TIME for v in scaled):
            unit = time
        else:
            unit = max(1.0, max(map(abs, (expression.constant, *scaled.values()))) / SIZE)
        total = affine({variables[v]: c / unit for v, c in scaled.items()}) + expression.constant / unit
        lp += (total == 0) if row.equal else (total >= 0)


CBC = MipSolver("cbc", cbc_version, 40, solve_cbc)
