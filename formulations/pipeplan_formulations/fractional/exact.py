"""The exact method: bisection on T, each target tested in closed form (`reach`)."""

from pipeplan_formulations.clock import Clock, OutOfTimeError
from pipeplan_formulations.fractional.problem import FractionalPartition, Positions, whole
from pipeplan_formulations.fractional.reach import within
from pipeplan_formulations.fractional.rounding import tidy
from pipeplan_formulations.fractional.tables import Tables
from pipeplan_formulations.report import Limits, Progress, Report, Status, Stop

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
        See `pipeplan_formulations.report.Progress`.
    enough : int, optional
        Stop with what there is once the bound has reached this.

    Raises
    ------
    ValueError
        If the problem has path cuts.
    """
    if problem.paths:
        raise ValueError("path cuts couple distant stages, which this method cannot; ask cbc or cpsat")
    clock = Clock(limits)
    low, best = problem.lower_bound(), hint if hint is not None and problem.feasible(hint) else None
    high = None if best is None else whole(problem.evaluate(best))
    tables = Tables(problem)
    stop = Stop.OPTIMALITY

    def tell() -> None:
        if progress is not None:
            progress(high, low)

    target, step = low, max(1, low // 64)
    try:
        if enough is not None and low < enough <= problem.largest and (high is None or high >= enough):
            target, step = enough - 1, problem.largest
        while (high is None or high - low > limits.gap * high) and (enough is None or low < enough):
            found, certain = within(tables, target, clock)
            if found is None and high is None and target >= problem.largest:
                return _report(clock, Status.INFEASIBLE, stop, None, None, low)
            if found is None:
                low = max(low, target + 1)
            else:
                best = min(filter(None, (best, tidy(problem, found))), key=problem.evaluate)
                high = max(low, whole(problem.evaluate(best)))
                high = min(high, target) if certain else high  # the test's accuracy is that of `whole`
            tell()
            if not certain:
                break
            if high is None:
                target, step = min(target + step, problem.largest), 2 * step
            else:
                target = (low + high - 1) // 2
    except OutOfTimeError:
        stop = Stop.TIME
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
    if best is None or high is None:
        return _report(clock, Status.UNKNOWN, stop, None, None, low)
    stop = Stop.GAP if stop is Stop.OPTIMALITY and high > low else stop
    return _report(clock, Status.OPTIMAL if high <= low else Status.FEASIBLE, stop, best, high, low)


def _report(
    clock: Clock, status: Status, stop: Stop, best: Positions | None, value: int | None, low: int
) -> Report[Positions]:
    return Report(status, stop, value, low, clock.wall, NAME, "1", 0, best)
