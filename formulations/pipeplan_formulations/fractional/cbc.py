"""The fractional chain partition problem by CBC, through PuLP: places are integers, shares are real."""

from typing import Any

from pipeplan_formulations.common.cbc_process import proven, run_cbc
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.common.solvers import cbc_version, pulp
from pipeplan_formulations.fractional.instance import FractionalPartition, Positions, whole
from pipeplan_formulations.fractional.linear import ONE, LinearModel, linear_model
from pipeplan_formulations.fractional.rounding import nudged

NAME = "cbc"
SIZE = 1e4
"""Times become fractions of the largest, about this large, so that CBC's absolute tolerances mean relative ones."""

STEP = 2e-6
"""How far CBC's shares may be from what they stand for: its tolerance, and the eight digits that it writes."""


def solve(
    problem: FractionalPartition,
    limits: Limits,
    hint: Positions | None = None,
    progress: Progress | None = None,
    bound: int = 0,
) -> Report[Positions]:
    """Same call as every solver of this problem; see `exact.solve`. CBC gets no start (see docs/bounds.md).

    ``bound`` is one that the caller knows already.
    """
    clock = Clock(limits)
    low = max(problem.lower_bound(), bound)
    start = hint if hint is not None and problem.feasible(hint) else None
    model = linear_model(problem, 1, problem.largest)
    size = max(low, 1) / SIZE
    lp, variables = _variables(model, low / size)
    _constraints(lp, model, variables, size)
    lp.setObjective(pulp().LpAffineExpression({variables[model.objective]: 1}))
    answer = run_cbc(lp, variables, max(clock.left, 0.1), limits, preprocess=False)
    found = [start] if start is not None else []
    if answer.point is not None:
        positions = nudged(problem, model.positions(answer.point), STEP)
        found += [positions] if positions is not None else []
    if answer.infeasible and not found:
        return Report(Status.INFEASIBLE, Stop.OPTIMALITY, None, low, clock.wall, NAME, cbc_version(), 0, None)
    claimed = 0.0 if answer.infeasible else answer.bound
    if answer.optimal and answer.point is not None:  # CBC stops once the bound is within the gap of what it found
        claimed = max(claimed, answer.point[model.objective] * (1 - limits.gap))
    bound = max(low, proven(claimed * size, size))
    stop = Stop.INTERRUPT if answer.interrupted else Stop.TIME if answer.late or clock.left <= 0 else Stop.GAP
    if not found:
        return Report(Status.UNKNOWN, stop, None, bound, clock.wall, NAME, cbc_version(), limits.seed, None)
    best = min(found, key=problem.evaluate)
    value = max(bound if answer.optimal and limits.gap == 0 else low, whole(problem.evaluate(best)))
    bound = min(bound, value)
    status, stop = (Status.OPTIMAL, Stop.OPTIMALITY) if bound == value else (Status.FEASIBLE, stop)
    if progress is not None:
        progress(value, bound)
    return Report(status, stop, value, bound, clock.wall, NAME, cbc_version(), limits.seed, best)


def _variables(model: LinearModel, low: float) -> tuple[Any, list[Any]]:
    module = pulp()
    lp = module.LpProblem("fractional", module.LpMinimize)
    shares = {column for row in model.share for column in row}
    variables = []
    for i, (high, real) in enumerate(zip(model.highs, model.real, strict=True)):
        if not real:
            variables.append(lp.add_variable(f"z{i}", 0, high, module.LpInteger))
        elif i in shares:
            variables.append(lp.add_variable(f"s{i}", 0, 1))
        else:
            variables.append(lp.add_variable(f"t{i}", low if i == model.objective else 0))
    return lp, variables


def _constraints(lp: Any, model: LinearModel, variables: list[Any], size: float) -> None:
    """Rows of times are in units of ``size``, rows of bytes in units of their largest coefficient."""
    affine = pulp().LpAffineExpression
    scaled = {i for i, real in enumerate(model.real) if real} - {c for row in model.share for c in row}
    for row, timed in zip(model.rows, model.timed, strict=True):
        unit = size if timed else max(1.0, max(map(abs, row.values())) / 1e4)
        terms = {variables[i]: (c if i in scaled else c / unit) for i, c in row.items() if i != ONE and c}
        lp += (affine(terms) + row.get(ONE, 0) / unit) >= 0
