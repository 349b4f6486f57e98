"""CP-SAT back end of the pipeline scheduling problem: the model of `cpsat_model`, within bounds, from a list schedule.

The first search is for a schedule hardly longer than the bound. Its windows are so narrow that little is left to
decide: the optimum is found and proved before a search from the best known schedule makes its first steps, and a
refutation raises the bound. The second search is for any schedule better than the best known one, which is a complete
hint.
"""

from dataclasses import replace
from typing import Any

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.mip.cpsat import whole
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop
from pipeplan_formulations.common.solvers import cp_model, cpsat_version, why_stopped
from pipeplan_formulations.schedule.bounds import Windows, lower_bound, windows
from pipeplan_formulations.schedule.cpsat_model import CpsatModel, pairs
from pipeplan_formulations.schedule.instance import Orders, PipelineSchedule
from pipeplan_formulations.schedule.objective import Starts, makespan, orders_of, starts
from pipeplan_formulations.schedule.russian_dolls import russian_dolls
from pipeplan_formulations.schedule.start import SHARE, ScaledProblem, open_bracket, scaled, start

NAME = "cpsat"
RUSSIAN_DOLLS = 0.55
"""Share of the time limit for bounds from fewer micro-batches."""
NARROW, HARDLY = 0.5, 8
"""Share of the time left after that for schedules hardly longer than the bound: by 1 / `HARDLY` of the gap."""
PAIRS = 1_500_000
"""Largest number of pairs of operations of one device in a model. Beyond it the answer is the best list schedule with
the bounds."""


def solve(
    problem: PipelineSchedule, limits: Limits, hint: Orders | None = None, on_progress: Progress | None = None
) -> Report[Orders]:
    """Minimise the step time.

    Parameters
    ----------
    problem : PipelineSchedule
    limits : Limits
    hint : orders, optional
        Orders to start from; ignored if they are not feasible. The answer is never worse than they are, nor than the
        best list schedule.
    on_progress : callable, optional
        See `Progress`.

    Returns
    -------
    Report
        The value of its orders is that of `evaluate`, never the solver's.
    """
    bracket = open_bracket(problem, limits, on_progress)
    if bracket.impossible:
        return bracket.report(Stop.OPTIMALITY, NAME, cpsat_version())
    try:
        form = scaled(problem)
        known = windows(form.problem)
        low = lower_bound(form.problem, known)
        bracket.raise_low(form.bound(low))
        start(problem, bracket, hint, SHARE * limits.time)
        if not bracket.closed:
            known = _with_russian_dolls(form, known, bracket)
            low = lower_bound(form.problem, known)
            bracket.raise_low(form.bound(low))
        stop = Stop.GAP if bracket.closed else _search(form, known, low, bracket)
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
    return bracket.report(stop, NAME, cpsat_version())


def _with_russian_dolls(form: ScaledProblem, known: Windows, bracket: Bracket[Orders]) -> Windows:
    """Windows tightened by bounds on fewer micro-batches (`russian_dolls`), within their share of the time."""
    seconds = min(RUSSIAN_DOLLS * bracket.limits.time, bracket.clock.left)
    if bracket.best is None or seconds <= 0:
        return known
    return windows(
        form.problem, russian_dolls(form.problem, bracket.best, replace(bracket.limits, time=seconds), PAIRS)
    )


def _search(form: ScaledProblem, known: Windows, low: int, bracket: Bracket[Orders]) -> Stop:
    """Search a schedule hardly longer than the bound by CP-SAT, then any that is better than the best known one."""
    problem = form.problem
    if bracket.best is None or pairs(problem) > PAIRS:
        return Stop.EXHAUSTED
    value = makespan(problem, _known(problem, bracket))
    # Narrow horizons: each refutation raises the bound, until the time share ends or a schedule is found.
    stop, clock = Stop.EXHAUSTED, Clock(replace(bracket.limits, time=NARROW * bracket.clock.left))
    while stop is Stop.EXHAUSTED and not bracket.closed:
        high = low + (value - low) // HARDLY
        stop = _run(CpsatModel(problem, known, low, high), form, bracket, clock)
        if stop is Stop.EXHAUSTED:
            low = high + 1
            bracket.raise_low(form.bound(low))
    # Full horizon, with the best known schedule as hint.
    if stop is Stop.TIME:
        begun = _known(problem, bracket)
        value = makespan(problem, begun)
        model = CpsatModel(problem, known, low, value)
        model.hint(begun, value)
        stop = _run(model, form, bracket, bracket.clock)
        return Stop.ERROR if stop is Stop.EXHAUSTED else stop  # the hint is a solution
    return Stop.GAP if bracket.closed else stop


def _known(problem: PipelineSchedule, bracket: Bracket[Orders]) -> Starts:
    """Starts of the best known schedule."""
    begun = starts(problem, bracket.best) if bracket.best is not None else None
    if begun is None:
        raise ValueError("there are no orders, or they deadlock")
    return begun


def _run(model: CpsatModel, form: ScaledProblem, bracket: Bracket[Orders], clock: Clock) -> Stop:
    """Run CP-SAT and pass its solutions and bounds to the bracket; `Stop.EXHAUSTED` if the model is infeasible."""
    if clock.left <= 0:
        return Stop.TIME
    cp = cp_model()
    solver = model.solver(replace(bracket.limits, time=clock.left))
    watcher = _watcher(cp, model, solver, form, bracket)
    solver.best_bound_callback = watcher.on_bound
    status = solver.solve(model.sat, watcher)
    if status == cp.INFEASIBLE:
        return Stop.EXHAUSTED
    if status in (cp.OPTIMAL, cp.FEASIBLE):
        bracket.offer(orders_of(model.problem, _read(model, solver)))
    if status in (cp.OPTIMAL, cp.FEASIBLE, cp.UNKNOWN):
        watcher.on_bound(solver.best_objective_bound)
    if status == cp.OPTIMAL or bracket.closed:
        return Stop.GAP
    return Stop.INTERRUPT if why_stopped(solver, clock) is Stop.INTERRUPT else Stop.TIME


def _read(model: CpsatModel, solver: Any) -> Starts:
    return {op: int(solver.value(variable)) for op, variable in model.begins.items()}


def _watcher(cp: Any, model: CpsatModel, solver: Any, form: ScaledProblem, bracket: Bracket[Orders]) -> Any:
    """Callback that records each better schedule and bound, and stops the search once the bracket is closed."""

    class Watcher(cp.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            bracket.offer(orders_of(model.problem, _read(model, self)))

        def on_bound(self, bound: float) -> None:
            # A bound beyond the model's horizon proves no more than the horizon.
            bracket.raise_low(form.bound(min(whole(bound), model.high + 1)))
            if bracket.closed:
                solver.stop_search()

    return Watcher()
