"""The chain partition problem by CP-SAT: the rows of `linear`, a complete hint, and the dynamic programme's bound."""

import math
from dataclasses import replace
from typing import Any

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.common.scaling import Scale, scale_for
from pipeplan_formulations.common.solvers import cp_model, cpsat_solver, cpsat_version, why_stopped
from pipeplan_formulations.partition.begin import begin
from pipeplan_formulations.partition.instance import Boundaries, ChainPartition
from pipeplan_formulations.partition.linear import linear_model
from pipeplan_formulations.partition.model import LinearModel

NAME = "cpsat"


def solve(
    problem: ChainPartition,
    limits: Limits,
    hint: Boundaries | None = None,
    progress: Progress | None = None,
    start: Report[Boundaries] | None = None,
) -> Report[Boundaries]:
    """Minimise T under (1) to (8). Same call as every solver of this problem; see `exact.solve` for the parameters.

    The search begins from ``start``, a report on the same problem; by default the dynamic programme's, which bounds
    the problem without (6). If its partition is worth that bound with (6) too, all is said. Where there is no (6)
    CP-SAT checks the claim from its own model.
    """
    clock = Clock(limits)
    scale = scale_for(problem.largest)
    first = begin(problem, limits, hint, progress, start)
    if first.stop is Stop.INTERRUPT or (problem.paths and first.status is Status.OPTIMAL):
        return _report(problem, clock, limits, first.status, first.stop, first.bound, first.solution)
    if first.status is Status.INFEASIBLE:
        low, high = 0, scale.down(problem.largest)
    else:
        best = first.objective if first.objective is not None else problem.largest
        # The rows round down, so that the scaled value of the start is at most that of the unscaled one, rounded up.
        low, high = scale.down(first.bound), -(-best // scale.unit)
    model = linear_model(problem, scale, min(low, high), high)
    if model is None:
        return _report(problem, clock, limits, Status.INFEASIBLE, Stop.OPTIMALITY, first.bound, None)

    cp = cp_model()
    sat = cp.CpModel()
    variables = _variables(sat, model)
    _constraints(sat, model, variables)
    _objective(sat, model, variables, first.solution, problem)
    solver = cpsat_solver(replace(limits, time=clock.left))
    watcher = None
    if progress is not None:
        watcher = _watcher(cp, problem, model, variables, scale, first, progress)
        solver.best_bound_callback = watcher.on_bound
    status = solver.solve(sat, watcher)
    return _extract(cp, solver, status, problem, model, variables, first, clock, limits, scale)


def _variables(sat: Any, model: LinearModel) -> list[Any]:
    return [sat.new_int_var(low, high, "") for low, high in zip(model.lows, model.highs, strict=True)]


def _constraints(sat: Any, model: LinearModel, variables: list[Any]) -> None:
    weighted_sum = cp_model().LinearExpr.weighted_sum
    for row in model.rows:
        terms = row.expression.terms
        total = weighted_sum([variables[v] for v in terms], list(terms.values())) + row.expression.constant
        sat.add(total == 0 if row.equal else total >= 0)


def _objective(
    sat: Any, model: LinearModel, variables: list[Any], start: Boundaries | None, problem: ChainPartition
) -> None:
    """Minimise T. The hint names every variable, T included: a hint without T is dropped as incomplete."""
    sat.minimize(variables[model.objective])
    if start is not None and problem.feasible(start):
        for variable, value in zip(variables, model.point(problem, start, model.highs[model.objective]), strict=True):
            sat.add_hint(variable, value)


def _watcher(
    cp: Any,
    problem: ChainPartition,
    model: LinearModel,
    variables: list[Any],
    scale: Scale,
    first: Report[Boundaries],
    progress: Progress,
) -> Any:
    """Tells ``progress`` of each better partition and each better bound."""
    switches = [variable for cuts in model.switches for variable in cuts.values()]

    class Watcher(cp.CpSolverSolutionCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.best, self.bound = first.objective, first.bound

        def on_solution_callback(self) -> None:
            point = [0.0] * len(variables)
            for variable in switches:
                point[variable] = float(self.value(variables[variable]))
            boundaries = model.boundaries(point, problem.layers)
            value = problem.evaluate(boundaries)
            if (self.best is None or value < self.best) and problem.feasible(boundaries):
                self.best = value
                self.tell()

        def on_bound(self, bound: float) -> None:
            if scale.up(_whole(bound)) > self.bound:
                self.bound = scale.up(_whole(bound))
                self.tell()

        def tell(self) -> None:
            progress(self.best, self.bound if self.best is None else min(self.bound, self.best))

    return Watcher()


def _whole(bound: float) -> int:
    """CP-SAT hands over its integer bound as a double, exact below 2^53."""
    return math.ceil(bound - 0.5)


def _extract(
    cp: Any,
    solver: Any,
    status: Any,
    problem: ChainPartition,
    model: LinearModel,
    variables: list[Any],
    first: Report[Boundaries],
    clock: Clock,
    limits: Limits,
    scale: Scale,
) -> Report[Boundaries]:
    """Boundaries from switches, judged on the unscaled tables; the better of CP-SAT's and the start's."""
    found = [first.solution] if first.solution is not None else []
    if status in (cp.OPTIMAL, cp.FEASIBLE):
        boundaries = model.boundaries([float(solver.value(v)) for v in variables], problem.layers)
        # Bytes beyond the solver's integers are rounded down in (1), so that it may overfill a stage.
        found += [boundaries] if problem.feasible(boundaries) else []
    if status == cp.INFEASIBLE:
        if not found:
            return _report(problem, clock, limits, Status.INFEASIBLE, Stop.OPTIMALITY, first.bound, None)
        return _report(problem, clock, limits, Status.FEASIBLE, Stop.ERROR, problem.lower_bound(), found[0])
    bound = first.bound
    if status in (cp.OPTIMAL, cp.FEASIBLE, cp.UNKNOWN):
        bound = max(bound, scale.up(_whole(solver.best_objective_bound)))
    if not found:
        return _report(problem, clock, limits, Status.UNKNOWN, why_stopped(solver, clock), bound, None)
    best = min(found, key=problem.evaluate)
    value = problem.evaluate(best)
    bound = min(bound, value)
    if bound == value:
        return _report(problem, clock, limits, Status.OPTIMAL, Stop.OPTIMALITY, bound, best)
    stop = Stop.GAP if status == cp.OPTIMAL else why_stopped(solver, clock)
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
    return Report(status, stop, value, bound, clock.wall, NAME, cpsat_version(), limits.seed, best)
