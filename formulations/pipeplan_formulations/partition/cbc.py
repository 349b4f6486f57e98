"""The chain partition problem by CBC, through PuLP: the same rows, a second opinion from another kind of solver.

PuLP writes the model and reads the answer; the process is ours to start, because CBC may overrun its own time limit and
because its log is the only place that tells a dual bound.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeplan_formulations.clock import Clock
from pipeplan_formulations.partition.begin import begin
from pipeplan_formulations.partition.linear import linear_model
from pipeplan_formulations.partition.model import LinearModel, Unit
from pipeplan_formulations.partition.problem import Boundaries, ChainPartition
from pipeplan_formulations.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.scaling import scale_for
from pipeplan_formulations.solvers import cbc_version, pulp

NAME = "cbc"
GRACE = 2.0
"""Seconds that CBC may take beyond its limit before it is killed."""
INCREMENT = 1e-9
"""By how much (T being about 10^4) a solution must improve on the incumbent; by default CBC skips small steps."""
RESOLUTION = 1e-7
"""Relative accuracy with which CBC's bound is trusted: its own tolerance for rows."""
BITS = 40
"""Scaled objectives stay below 2^BITS, far inside the integers that a double holds."""
_LOWER = re.compile(r"Lower bound:\s*([-+0-9.eE]+)")


@dataclass(frozen=True)
class _Answer:
    """What CBC said: PuLP's two words, the values, a lower bound on T (model units), and what ended it."""

    optimal: bool
    infeasible: bool
    point: list[float] | None
    bound: float
    late: bool
    interrupted: bool


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
    if first.stop is Stop.INTERRUPT:
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
    answer = _run(lp, variables, max(clock.left, 0.1), limits)
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


def _run(lp: Any, variables: list[Any], seconds: float, limits: Limits) -> _Answer:
    """Start CBC, wait, and kill it if it overruns."""
    module = pulp()
    reader = module.COIN_CMD(path=module.PULP_CBC_CMD().path, msg=False)
    with tempfile.TemporaryDirectory(prefix="pipeplan-cbc-") as folder:
        mps, solution = Path(folder) / "model.mps", Path(folder) / "model.sol"
        columns, column_names, row_names, _ = lp.writeMPS(str(mps), rename=1)
        command = [reader.path, str(mps), "-sec", str(seconds), "-timeMode", "elapsed", "-ratio", str(limits.gap)]
        command += ["-threads", str(limits.workers), "-randomCbcSeed", str(limits.seed), "-increment", str(INCREMENT)]
        command += ["-solve", "-printingOptions", "all", "-solution", str(solution)]
        late = interrupted = False
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds + GRACE, check=False, stdin=subprocess.DEVNULL
            )
            log = done.stdout
        except subprocess.TimeoutExpired:
            late, log = True, ""
        except KeyboardInterrupt:
            interrupted, log = True, ""
        if not solution.exists():
            return _Answer(False, False, None, 0.0, late, interrupted)
        status, values, *_, sol_status = reader.readsol_MPS(str(solution), lp, columns, column_names, row_names)
    module_ok = sol_status in (module.LpSolutionOptimal, module.LpSolutionIntegerFeasible)
    point = None
    if module_ok and values:  # a variable that no row names keeps its least value
        point = [float(values.get(v.name, v.lowBound) or 0.0) for v in variables]
    told = _LOWER.search(log)
    late = late or "time" in log.partition("Result - ")[2].partition("\n")[0]
    return _Answer(
        optimal=sol_status == module.LpSolutionOptimal and not late,
        infeasible=status == module.LpStatusInfeasible,
        point=point,
        bound=float(told[1]) if told else 0.0,
        late=late,
        interrupted=interrupted,
    )


def _extract(
    problem: ChainPartition,
    model: LinearModel,
    first: Report[Boundaries],
    answer: _Answer,
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
    bound = max(first.bound, _proven(claimed * unit, unit))
    stop = Stop.INTERRUPT if answer.interrupted else Stop.TIME if answer.late or clock.left <= 0 else Stop.GAP
    if not found:
        return _report(problem, clock, limits, Status.UNKNOWN, stop, bound, None)
    best = min(found, key=problem.evaluate)
    value = problem.evaluate(best)
    if bound >= value:
        return _report(problem, clock, limits, Status.OPTIMAL, Stop.OPTIMALITY, value, best)
    return _report(problem, clock, limits, Status.FEASIBLE, stop, bound, best)


def _proven(value: float, unit: float) -> int:
    """The integer bound that a floating-point one allows: up to the next integer, after giving up its inaccuracy."""
    slack = RESOLUTION * max(value, unit)
    below = int(value - slack)
    return below if value - slack <= below else below + 1


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
