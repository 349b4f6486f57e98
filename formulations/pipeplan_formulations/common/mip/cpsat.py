"""CP-SAT adapter for linear models: every variable is an integer, conditions are enforcement literals."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.mip.model import Answer, LinearModel, MipSolver
from pipeplan_formulations.common.report import Limits, Status, Stop
from pipeplan_formulations.common.scaling import BITS
from pipeplan_formulations.common.solvers import cp_model, cpsat_solver, cpsat_version, why_stopped


def solve_cpsat(
    model: LinearModel,
    limits: Limits,
    hint: Sequence[int] | None = None,
    on_solution: Callable[[list[float]], None] | None = None,
    on_bound: Callable[[int], None] | None = None,
) -> Answer:
    """Solve the model; see `Solve` for the parameters.

    The hint has to name every variable, the objective included: CP-SAT drops an incomplete one.
    """
    cp = cp_model()
    # Model and hint.
    sat, variables = _written(cp, model)
    if hint is not None:
        for variable, value in zip(variables, hint, strict=True):
            sat.add_hint(variable, value)
    solver, clock = cpsat_solver(limits), Clock(limits)
    if model.relaxed:
        solver.parameters.linearization_level = 2
        if limits.workers > 1:
            solver.parameters.subsolvers.append("max_lp")
    if on_bound is not None:
        solver.best_bound_callback = lambda bound: on_bound(whole(bound))
    # Solve, and translate status, bound and point.
    status = solver.solve(sat, None if on_solution is None else _watcher(cp, variables, on_solution))
    if status == cp.INFEASIBLE:
        return Answer(Status.INFEASIBLE, Stop.OPTIMALITY, model.lows[model.objective], None)
    bound, point = model.lows[model.objective], None
    if status in (cp.OPTIMAL, cp.FEASIBLE, cp.UNKNOWN):
        bound = max(bound, whole(solver.best_objective_bound))
    if status in (cp.OPTIMAL, cp.FEASIBLE):
        point = [float(solver.value(variable)) for variable in variables]
    if status == cp.OPTIMAL:
        return Answer(Status.OPTIMAL, Stop.GAP, bound, point)
    return Answer(Status.UNKNOWN if point is None else Status.FEASIBLE, why_stopped(solver, clock), bound, point)


def _written(cp: Any, model: LinearModel) -> tuple[Any, list[Any]]:
    """The CP-SAT model and its variables."""
    sat = cp.CpModel()
    variables = [sat.new_int_var(low, high, "") for low, high in zip(model.lows, model.highs, strict=True)]

    def literal(number: int) -> Any:
        return variables[number] if number >= 0 else ~variables[~number]

    for literals in model.clauses:
        sat.add_bool_or(list(map(literal, literals)))
    for row in model.rows:
        terms, least = row.expression.terms, -row.expression.constant
        total = cp.LinearExpr.weighted_sum([variables[v] for v in terms], list(terms.values()))
        constraint = sat.add(total == least if row.equal else total >= least)
        if row.when:
            constraint.only_enforce_if(list(map(literal, row.when)))
    sat.minimize(variables[model.objective])
    return sat, variables


def _watcher(cp: Any, variables: list[Any], on_solution: Callable[[list[float]], None]) -> Any:
    """A solution callback that passes each point on."""

    class Watcher(cp.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            on_solution([float(self.value(variable)) for variable in variables])

    return Watcher()


def whole(bound: float) -> int:
    """The integer bound from CP-SAT's floating-point one, which is exact below 2^53."""
    return math.ceil(bound - 0.5)


CPSAT = MipSolver("cpsat", cpsat_version, BITS, solve_cpsat)
