"""The bottleneck partition of a graph by CP-SAT: the rows of `prefix`, begun from a complete hint."""

import math
from dataclasses import replace
from typing import Any

from pipeplan_formulations.clock import Clock
from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.graph.bound import lower_bound
from pipeplan_formulations.graph.prefix import PrefixModel, prefix_model
from pipeplan_formulations.graph.problem import GraphPartition, Stages
from pipeplan_formulations.graph.warm import after_warm_start, open_bracket
from pipeplan_formulations.report import Limits, Progress, Report, Stop
from pipeplan_formulations.scaling import scale_for
from pipeplan_formulations.solvers import cp_model, cpsat_solver, cpsat_version, why_stopped

NAME = "cpsat"


def solve(
    problem: GraphPartition, limits: Limits, hint: Stages | None = None, progress: Progress | None = None
) -> Report[Stages]:
    """Minimise T under (1) to (3); see `exact.solve` for the parameters."""
    bracket = open_bracket(problem, limits, progress, hint)
    return bracket.report(after_warm_start(problem, bracket, search), NAME, cpsat_version())


def search(problem: GraphPartition, bracket: Bracket[Stages], seconds: float | None = None) -> Stop:
    """Let CP-SAT close the bracket, in so many seconds or all that are left; why it stopped.

    A solver that calls a problem infeasible whose solution is at hand is not believed in anything (`Stop.ERROR`).
    """
    if bracket.closed:
        return Stop.OPTIMALITY
    scale = scale_for(problem.largest)
    # The rows round down, so that the scaled value of a solution is at most its value, rounded up.
    high = -(-min(bracket.ceiling, problem.largest) // scale.unit)
    model = prefix_model(problem, scale, min(scale.down(bracket.low), high), high, bracket.ceiling)
    cp = cp_model()
    sat = cp.CpModel()
    variables = _variables(sat, model)
    _constraints(sat, model, variables)
    _objective(sat, model, variables, bracket)
    limits = replace(bracket.limits, time=bracket.clock.left if seconds is None else min(seconds, bracket.clock.left))
    solver, clock = cpsat_solver(limits), Clock(limits)
    watcher = _watcher(cp, problem, model, variables, bracket)
    solver.best_bound_callback = lambda bound: bracket.raise_low(scale.up(_whole(bound)))
    status = solver.solve(sat, watcher)
    return _extract(problem, cp, solver, clock, status, model, variables, bracket)


def _variables(sat: Any, model: PrefixModel) -> list[Any]:
    rows = model.rows
    return [
        sat.new_bool_var("") if switch and low < high else sat.new_int_var(low, high, "")
        for low, high, switch in zip(rows.lows, rows.highs, rows.switches, strict=True)
    ]


def _constraints(sat: Any, model: PrefixModel, variables: list[Any]) -> None:
    weighted_sum = cp_model().LinearExpr.weighted_sum
    for literals in model.rows.clauses:
        sat.add_bool_or([variables[v] if v >= 0 else ~variables[~v] for v in literals])
    for row in model.rows.rows:
        total = weighted_sum([variables[v] for v in row.terms], list(row.terms.values()))
        constraint = sat.add(total == row.least if row.equal else total >= row.least)
        if row.when:
            constraint.only_enforce_if([variables[v] for v in row.when])


def _objective(sat: Any, model: PrefixModel, variables: list[Any], bracket: Bracket[Stages]) -> None:
    """Minimise T. The hint names every variable, T included: a hint without T is dropped as incomplete."""
    sat.minimize(variables[model.time])
    if bracket.best is not None:
        point = model.point(bracket.best, model.rows.highs[model.time])
        for variable, value in zip(variables, point, strict=True):
            sat.add_hint(variable, value)


def _watcher(
    cp: Any, problem: GraphPartition, model: PrefixModel, variables: list[Any], bracket: Bracket[Stages]
) -> Any:
    """Offers each better solution at once."""

    class Watcher(cp.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            stages = model.read([float(self.value(variable)) for variable in variables])
            if problem.feasible(stages):
                bracket.offer(stages)

    return Watcher()


def _whole(bound: float) -> int:
    """CP-SAT hands over its integer bound as a double, exact below 2^53."""
    return math.ceil(bound - 0.5)


def _extract(
    problem: GraphPartition,
    cp: Any,
    solver: Any,
    clock: Clock,
    status: Any,
    model: PrefixModel,
    variables: list[Any],
    bracket: Bracket[Stages],
) -> Stop:
    """The solution from the switches, judged on the unscaled tables, and the bound."""
    if status in (cp.OPTIMAL, cp.FEASIBLE):
        stages = model.read([float(solver.value(v)) for v in variables])
        if problem.feasible(stages):
            bracket.offer(stages)
    if status == cp.INFEASIBLE:
        if bracket.best is not None:
            bracket.low = lower_bound(problem)
            return Stop.ERROR
        bracket.impossible = True
        return Stop.OPTIMALITY
    if status in (cp.OPTIMAL, cp.FEASIBLE, cp.UNKNOWN):
        bracket.raise_low(model.scale.up(_whole(solver.best_objective_bound)))
    if status == cp.OPTIMAL:
        return Stop.GAP
    return why_stopped(solver, clock)
