"""The bottleneck partition of a graph by CBC: the rows of `prefix`, their conditions as large constants."""

from typing import Any

from pipeplan_formulations.cbc_process import CbcAnswer, proven, run_cbc
from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.graph.bound import lower_bound
from pipeplan_formulations.graph.prefix import PrefixModel, prefix_model
from pipeplan_formulations.graph.problem import GraphPartition, Stages
from pipeplan_formulations.graph.rows import Row, Rows
from pipeplan_formulations.graph.warm import after_warm_start, open_bracket
from pipeplan_formulations.report import Limits, Progress, Report, Stop
from pipeplan_formulations.scaling import scale_for
from pipeplan_formulations.solvers import cbc_version, pulp

NAME = "cbc"
EXACT = 100_000
"""Largest number that stays an integer; larger ones are not rounded up, which weakens the bound by 1e-5 or so."""
BITS = 40
"""Scaled objectives stay below 2^BITS, far inside the integers that a double holds."""


def solve(
    problem: GraphPartition, limits: Limits, hint: Stages | None = None, progress: Progress | None = None
) -> Report[Stages]:
    """Minimise T under (1) to (3); see `exact.solve` for the parameters.

    CBC is told the warm start's value but not its solution: given one, CBC 2.10.3 has been seen to prove wrong optima.
    """
    bracket = open_bracket(problem, limits, progress, hint)
    return bracket.report(after_warm_start(problem, bracket, search), NAME, cbc_version())


def search(problem: GraphPartition, bracket: Bracket[Stages]) -> Stop:
    """Let CBC close the bracket; why it stopped."""
    if bracket.closed:
        return Stop.OPTIMALITY
    scale = scale_for(problem.largest, BITS)
    high = -(-min(bracket.ceiling, problem.largest) // scale.unit)
    model = prefix_model(problem, scale, min(scale.down(bracket.low), high), high, bracket.ceiling)
    # Times become fractions of the start's value, so that CBC's absolute tolerances mean relative ones.
    size = max(high, 1) / 1e4
    scales = _scales(model.rows, model.time, size)
    lp, variables = _variables(model.rows, model.time, scales)
    _constraints(lp, model.rows, variables, model.time, scales)
    _objective(lp, variables[model.time])
    answer = run_cbc(lp, variables, max(bracket.clock.left, 0.1), bracket.limits)
    return _extract(problem, answer, model, bracket, size * scale.unit)


def _scales(rows: Rows, time: int, size: float) -> list[float]:
    """What one unit of each column is worth: numbers too large to be exact become fractions of their largest value."""
    return [
        size if v == time else 1.0 if switch or high <= EXACT else high / 1e4
        for v, (high, switch) in enumerate(zip(rows.highs, rows.switches, strict=True))
    ]


def _variables(rows: Rows, time: int, scales: list[float]) -> tuple[Any, list[Any]]:
    module = pulp()
    lp = module.LpProblem("graph", module.LpMinimize)
    variables = []
    for v, (low, high, scale) in enumerate(zip(rows.lows, rows.highs, scales, strict=True)):
        if v == time:  # no upper end: a value that meets one exactly may look infeasible to a double
            variables.append(lp.add_variable(f"t{v}", low / scale))
        elif scale == 1.0:
            variables.append(lp.add_variable(f"x{v}", low, high, module.LpInteger))
        else:
            variables.append(lp.add_variable(f"n{v}", low / scale, high / scale))
    return lp, variables


def _constraints(lp: Any, rows: Rows, variables: list[Any], time: int, scales: list[float]) -> None:
    """Rows with T are divided by its coefficient, others by their largest one, so that all are of one magnitude."""
    affine = pulp().LpAffineExpression
    for literals in rows.clauses:
        terms = {variables[v if v >= 0 else ~v]: (1 if v >= 0 else -1) for v in literals}
        lp += affine(terms) >= 1 - sum(v < 0 for v in literals)
    for row in rows.rows:
        plain, least = _unconditional(row, rows)
        scaled = {v: c * scales[v] for v, c in plain.items()}
        unit = abs(scaled[time]) if time in scaled else max(map(abs, scaled.values()), default=1.0)
        total = affine({variables[v]: c / unit for v, c in scaled.items()}) - least / unit
        lp += (total == 0) if row.equal else (total >= 0)


def _unconditional(row: Row, rows: Rows) -> tuple[dict[int, int], int]:
    """The row with its conditions inside: where one of them is 0, it asks for no more than always holds."""
    terms, least = dict(row.terms), row.least
    slack = least - rows.floor(terms)
    for v in row.when:
        terms[v] = terms.get(v, 0) - slack
        least -= slack
    return terms, least


def _objective(lp: Any, time: Any) -> None:
    lp.setObjective(pulp().LpAffineExpression({time: 1}))


def _extract(
    problem: GraphPartition, answer: CbcAnswer, model: PrefixModel, bracket: Bracket[Stages], unit: float
) -> Stop:
    """The solution from the switches, judged on the exact tables; CBC's own objective, less its accuracy, bounds."""
    if answer.infeasible:
        if bracket.best is not None:
            bracket.low = lower_bound(problem)
            return Stop.ERROR
        bracket.impossible = True
        return Stop.OPTIMALITY
    claimed = answer.bound
    if answer.point is not None:
        stages = model.read(answer.point)
        if problem.feasible(stages):
            bracket.offer(stages)
        if answer.optimal and bracket.limits.gap == 0:
            claimed = max(claimed, answer.point[model.time])
    bracket.raise_low(proven(claimed * unit, unit))
    if answer.interrupted:
        return Stop.INTERRUPT
    return Stop.TIME if answer.late or bracket.clock.left <= 0 else Stop.GAP
