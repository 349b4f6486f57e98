"""The exact dynamic programmes behind one call: oracle without (6), bound and warm start with it."""

from pipeplan_formulations.common.clock import OutOfTimeError
from pipeplan_formulations.common.report import BeyondIntegersError, Limits, Progress, Report, Status, Stop
from pipeplan_formulations.partition.instance import Boundaries, ChainPartition
from pipeplan_formulations.partition.minmax import solve_minmax
from pipeplan_formulations.partition.pareto import solve_step
from pipeplan_formulations.partition.search import Bracket
from pipeplan_formulations.partition.spans import NEVER
from pipeplan_formulations.partition.windows import windows

NAME = "exact"


def solve(
    problem: ChainPartition,
    limits: Limits,
    hint: Boundaries | None = None,
    progress: Progress | None = None,
    cutoff: int | None = None,
) -> Report[Boundaries]:
    """Minimise T under (1) to (5) and (8); (6) only judges the answer.

    Parameters
    ----------
    problem : ChainPartition
    limits : Limits
        ``workers`` and ``seed`` are not used.
    hint : boundaries, optional
        Partition to start from; ignored if it breaks (1).
    progress : callable, optional
        See `Progress`.
    cutoff : int, optional
        Values from here on do not matter: it is enough to know that there are none below it. Then there may be no
        solution although there are partitions.

    Returns
    -------
    Report
        With `PathCut` the bound is the optimum without them, and the answer optimal only if it meets that bound. So it
        is where a span has too many choices of recomputation to know the least one: the bound then is optimistic.

    Raises
    ------
    BeyondIntegersError
        If times are so large that their sums leave 64-bit integers.
    """
    if problem.largest >= NEVER // 2:
        raise BeyondIntegersError(f"times add up to {problem.largest}, beyond {NEVER // 2}; scale them")
    bracket = Bracket(problem, limits, progress, cutoff)
    stop = Stop.OPTIMALITY
    try:
        room = windows(problem, bracket.clock)
        if not room.possible:
            return _report(problem, bracket, Status.INFEASIBLE, stop, None)
        if hint is not None and problem.feasible(hint):
            bracket.offer(hint)
        (solve_minmax if problem.objective == "bottleneck" else solve_step)(problem, room, bracket)
        stop = Stop.OPTIMALITY if bracket.proven else Stop.GAP
    except OutOfTimeError:
        stop = Stop.TIME
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
    candidates = [b for b in (bracket.best, hint) if b is not None and problem.feasible(b)]
    best = min(candidates, key=problem.evaluate, default=None)
    if best is None:
        return _report(problem, bracket, Status.UNKNOWN, stop, None)
    optimal = problem.evaluate(best) == bracket.low
    return _report(problem, bracket, Status.OPTIMAL if optimal else Status.FEASIBLE, stop, best)


def _report(
    problem: ChainPartition, bracket: Bracket, status: Status, stop: Stop, best: Boundaries | None
) -> Report[Boundaries]:
    return Report(
        status=status,
        stop=stop,
        objective=None if best is None else problem.evaluate(best),
        bound=bracket.low,
        wall=bracket.clock.wall,
        backend=NAME,
        version="1",
        seed=0,
        solution=best,
    )
