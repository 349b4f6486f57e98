"""Is there a schedule that takes no longer than T? Where not, every one takes longer.

A time that is too short by a per cent or two is refuted much sooner than the same bound is reached by raising an
objective: every operation has to fit between its head and T less its tail, so that windows are narrow, and most of the
order on the devices is known before the search begins.
"""

from dataclasses import replace

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Stop
from pipeplan_formulations.common.solvers import cp_model, why_stopped
from pipeplan_formulations.schedule.cpsat_model import CpsatModel
from pipeplan_formulations.schedule.instance import PipelineSchedule
from pipeplan_formulations.schedule.windows import Windows

RISE = 3
"""A question is as far above the bound as 1 / `RISE` of the gap: the shorter the time, the sooner it is refuted."""


def answered(problem: PipelineSchedule, known: Windows, time: int, limits: Limits) -> int | None:
    """`time` + 1 if no schedule takes at most `time`, what one takes if there is, None if that was not found out.

    Parameters
    ----------
    problem : PipelineSchedule
        All operations take time.
    known : Windows
        Its windows; `time` is no less than the `lower_bound` that they give.
    time : int
    limits : Limits

    Raises
    ------
    KeyboardInterrupt
        If the solver was interrupted.
    """
    cp, clock = cp_model(), Clock(limits)
    model = CpsatModel(problem, known, 0, time)
    model.sat.clear_objective()
    solver = model.solver(limits)
    status = solver.solve(model.sat)
    if status == cp.INFEASIBLE:
        return time + 1
    if status in (cp.OPTIMAL, cp.FEASIBLE):
        return int(solver.value(model.objective))
    if why_stopped(solver, clock) is Stop.INTERRUPT:
        raise KeyboardInterrupt
    return None


def raised(
    problem: PipelineSchedule, known: Windows, low: int, high: int, limits: Limits, patience: float, fine: float
) -> int:
    """A bound between `low`, which is one, and `high`, which some schedule takes, by questions (`answered`).

    `limits.time` is that of all questions, `patience` the most seconds for one. Where it does not do a shorter time is
    asked for, until one is refuted. `fine` is the part of `high` at which the gap is small enough.
    """
    clock, refuted, lost = Clock(limits), False, False
    while high - low > fine * high and clock.left > 0 and not (refuted and lost):
        time = low + (high - low) // RISE
        answer = answered(problem, known, time, replace(limits, time=min(patience, clock.left)))
        if answer is not None and answer > time:
            low, refuted = answer, True
        else:
            high, lost = time if answer is None else answer, lost or answer is None
    return low
