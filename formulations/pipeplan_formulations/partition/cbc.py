"""The chain partition problem by CBC, through PuLP: the same rows, a second opinion from another kind of solver."""

from typing import Any

from pipeplan_formulations.common.cbc_process import CbcAnswer, proven, run_cbc
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.common.scaling import scale_for
from pipeplan_formulations.common.solvers import cbc_version, pulp
from pipeplan_formulations.partition.begin import begin
from pipeplan_formulations.partition.instance import Boundaries, ChainPartition
from pipeplan_formulations.partition.linear import linear_model
from pipeplan_formulations.partition.model import LinearModel, Unit

NAME = "cbc"
BITS = 40
"""Scaled objectives stay below 2^BITS, far inside the integers that a double holds."""


def solve(
    problem: ChainPartition,
    limits: Limits,
    hint: Boundaries | None = None,
    progress: Progress | None = None,
    start: Report[Boundaries] | None = None,
) -> Report[Boundaries]:
    """Minimise T under (1) to (8). Same call as every solver of this problem; see `cpsat.solve` for ``start``.

    CBC is told the start's bound but not its partition: given one, CBC 2.10.3 has been seen to call problems infeasible
    that are not, and to prove the start optimal when it is not. ``progress`` hears of the start only.
    """
    clock = Clock(limits)
    scale = scale_for(problem.largest, BITS)
    first = begin(problem, limits, hint, progress, start)
    if first.stop is Stop.INTERRUPT or (problem.paths and first.status is Status.OPTIMAL):
        return _report(problem, clock, limits, first.status, first.stop, first.bound, first.solution)
    best = first.objective if first.objective is not None else problem.largest
    high = -(-best // scale.unit)
    low = 0 if first.status is Status.INFEASIBLE else min(scale.down(first.bound), high)
    model = linear_model(problem, scale, low, high)
    if model is None:
        return _report(problem, clock, limits, Status.INFEASIBLE, Stop.OPTIMALITY, first.bound, None)

    # Times become fractions of the start's value, so that CBC's absolute tolerances mean relative ones.
    size = max(high, 1) / 1e4
    sizes = _sizes(model, size)
    lp, variables = _variables(model, sizes)
    _constraints(lp, model, variables, sizes)
    _objective(lp, model, variables)
    answer = run_cbc(lp, variables, max(clock.left, 0.1), limits)
    return _extract(problem, model, first, answer, clock, limits, size * scale.unit)


def _sizes(model: LinearModel, size: float) -> dict[Unit, float]:
    """What one of CBC's units is of each kind of variable, so that values are about 10^4 at most."""
    rows = (row.expression for row in model.rows)
    sums = (abs(e.constant) for e in rows if any(model.units[v] is Unit.BYTES for v in e.terms))
    return {Unit.CHOICE: 1.0, Unit.FLAG: 1.0, Unit.TIME: size, Unit.BYTES: max(1.0, max(sums, default=0) / 1e4)}


def _variables(model: LinearModel, sizes: dict[Unit, float]) -> tuple[Any, list[Any]]:
    module = pulp()
    lp = module.LpProblem("partition", module.LpMinimize)
    variables = []
    for i, (low, high, unit) in enumerate(zip(model.lows, model.highs, model.units, strict=True)):
        if unit is Unit.CHOICE:
            variables.append(lp.add_variable(f"x{i}", low, high, module.LpInteger))
        elif unit is Unit.FLAG:
            variables.append(lp.add_variable(f"f{i}", low, high))
        else:
            # No upper ends: they are implied, and a value that meets one exactly may look infeasible to a double. So
            # are the lower ends of times, but for T's.
            needed = i == model.objective or unit is Unit.BYTES
            variables.append(lp.add_variable(f"t{i}", low / sizes[unit] if needed else 0))
    return lp, variables


def _constraints(lp: Any, model: LinearModel, variables: list[Any], sizes: dict[Unit, float]) -> None:
    """Rows over switches alone stay as they are; rows with times or bytes are divided, those being so already."""
    affine = pulp().LpAffineExpression
    for row in model.rows:
        terms = row.expression.terms
        unit = max((sizes[model.units[v]] for v in terms), default=1.0)
        total = affine({variables[v]: c * (sizes[model.units[v]] / unit) for v, c in terms.items()})
        total += row.expression.constant / unit
        lp += (total == 0) if row.equal else (total >= 0)


def _objective(lp: Any, model: LinearModel, variables: list[Any]) -> None:
    lp.setObjective(pulp().LpAffineExpression({variables[model.objective]: 1}))


def _extract(
    problem: ChainPartition,
    model: LinearModel,
    first: Report[Boundaries],
    answer: CbcAnswer,
    clock: Clock,
    limits: Limits,
    unit: float,
) -> Report[Boundaries]:
    """Boundaries from switches, judged on the exact tables. CBC's own objective, less its accuracy, is the bound."""
    found = [first.solution] if first.solution is not None else []
    if answer.point is not None:
        boundaries = model.boundaries(answer.point, problem.layers)
        found += [boundaries] if problem.feasible(boundaries) else []
    if answer.infeasible:
        if not found:
            return _report(problem, clock, limits, Status.INFEASIBLE, Stop.OPTIMALITY, first.bound, None)
        return _report(problem, clock, limits, Status.FEASIBLE, Stop.ERROR, problem.lower_bound(), found[0])
    claimed = answer.bound
    if answer.optimal and answer.point is not None and limits.gap == 0:
        claimed = max(claimed, answer.point[model.objective])
    bound = max(first.bound, proven(claimed * unit, unit))
    stop = Stop.INTERRUPT if answer.interrupted else Stop.TIME if answer.late or clock.left <= 0 else Stop.GAP
    if not found:
        return _report(problem, clock, limits, Status.UNKNOWN, stop, bound, None)
    best = min(found, key=problem.evaluate)
    value = problem.evaluate(best)
    if bound >= value:
        return _report(problem, clock, limits, Status.OPTIMAL, Stop.OPTIMALITY, value, best)
    return _report(problem, clock, limits, Status.FEASIBLE, stop, bound, best)


def _report(
    problem: ChainPartition,
    clock: Clock,
    limits: Limits,
    status: Status,
    stop: Stop,
    bound: int,
    best: Boundaries | None,
) -> Report[Boundaries]:
    value = None if best is None else problem.evaluate(best)
    return Report(status, stop, value, bound, clock.wall, NAME, cbc_version(), limits.seed, best)
