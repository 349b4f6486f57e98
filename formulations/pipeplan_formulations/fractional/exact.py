"""The exact method: bisection on T, each target tested in closed form (`reach`)."""

from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.fractional.bracket import Bracket, start
from pipeplan_formulations.fractional.instance import FractionalPartition, Positions
from pipeplan_formulations.fractional.reach import within
from pipeplan_formulations.fractional.tables import Tables

NAME = "exact"


def solve(
    problem: FractionalPartition,
    limits: Limits,
    hint: Positions | None = None,
    progress: Progress | None = None,
    enough: int | None = None,
) -> Report[Positions]:
    """Minimise T to a whole unit; sums are as good as doubles are (see `whole`).

    Parameters
    ----------
    problem : FractionalPartition
    limits : Limits
        ``workers`` and ``seed`` are not used.
    hint : positions, optional
        A solution to start from; ignored if it breaks (1).
    progress : callable, optional
        See `pipeplan_formulations.common.report.Progress`.
    enough : int, optional
        Stop with what there is once the bound has reached this.

    Raises
    ------
    ValueError
        If the problem has path cuts.
    """
    if problem.paths:
        raise ValueError("path cuts couple distant stages, which this method cannot; ask cbc or cpsat")
    clock, bracket, tables = Clock(limits), start(problem, hint), Tables(problem)
    stop = Stop.OPTIMALITY
    target: int | None = bracket.low
    if enough is not None and bracket.low < enough <= problem.largest and not (bracket.high or enough) < enough:
        target = enough - 1
    step = max(1, bracket.low // 64)
    try:
        while target is not None and (enough is None or bracket.low < enough) and bracket.high != bracket.low:
            found, certain = within(tables, target, clock)
            bracket.learn(target, found, certain)
            if progress is not None:
                progress(bracket.high, bracket.low)
            if bracket.high is not None:
                target = bracket.next(limits.gap)
            elif target >= problem.largest:
                return _report(clock, Status.INFEASIBLE, stop, bracket)
            else:
                target, step = min(target + step, problem.largest), 2 * step
    except OutOfTimeError:
        stop = Stop.TIME
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
    if bracket.high is None:
        return _report(clock, Status.UNKNOWN, stop, bracket)
    stop = Stop.GAP if stop is Stop.OPTIMALITY and bracket.high > bracket.low else stop
    return _report(clock, Status.OPTIMAL if bracket.high <= bracket.low else Status.FEASIBLE, stop, bracket)


def _report(clock: Clock, status: Status, stop: Stop, bracket: Bracket) -> Report[Positions]:
    return Report(status, stop, bracket.high, bracket.low, clock.wall, NAME, "1", 0, bracket.best)
