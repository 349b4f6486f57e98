"""Exact back end of the chain partition problem: dynamic programmes for both objectives, without path cuts.

With path cuts, their answer is a bound and a first solution.
"""

from functools import partial

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.clock import OutOfTimeError
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop
from pipeplan_formulations.partition.instance import ChainPartition
from pipeplan_formulations.partition.minmax import solve_minmax
from pipeplan_formulations.partition.pareto import solve_step
from pipeplan_formulations.partition.spans import require_countable
from pipeplan_formulations.partition.tables import Boundaries
from pipeplan_formulations.partition.windows import windows

NAME = "exact"


def solve(
    problem: ChainPartition,
    limits: Limits,
    hint: Boundaries | None = None,
    on_progress: Progress | None = None,
    cutoff: int | None = None,
) -> Report[Boundaries]:
    """Minimise T under all inequalities but path cuts, which only count in the objective of the answer.

    Parameters
    ----------
    problem : ChainPartition
    limits : Limits
        ``workers`` and ``seed`` are not used.
    hint : boundaries, optional
        Partition to start from; ignored if it breaks the memory limit.
    on_progress : callable, optional
        See `Progress`.
    cutoff : int, optional
        Values of at least this do not matter: a proof that there are none below it is enough. The report may then have
        no solution although there are partitions.

    Returns
    -------
    Report
        With path cuts (`PathCut`) the bound is the optimum without them, and the answer is optimal only if it attains
        that bound. The same holds if a span has too many options of recomputation to find the least one: the bound then
        takes a lower bound on it.

    Raises
    ------
    BeyondIntegersError
        If times are so large that their sums exceed 64-bit integers.
    """
    require_countable(problem)
    bracket = _open(problem, limits, on_progress, cutoff)
    stop = Stop.OPTIMALITY
    try:
        if hint is not None and problem.feasible(hint):
            bracket.offer(hint)
        room = windows(problem, bracket.clock)
        bracket.impossible = not room.possible
        if room.possible:
            (solve_minmax if problem.endless else solve_step)(problem, room, bracket)
            stop = Stop.OPTIMALITY if bracket.proven else Stop.GAP
    except OutOfTimeError:
        stop = Stop.TIME
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
    return bracket.report(stop, NAME)


def _open(
    problem: ChainPartition, limits: Limits, on_progress: Progress | None, cutoff: int | None
) -> Bracket[Boundaries]:
    """A bracket whose bound is on the problem without path cuts, with lower bounds on recomputation."""
    free = problem.with_paths(()) if problem.paths else problem
    relaxed = partial(free.evaluate, optimistic=True) if problem.paths or problem.recomputable.any() else None
    bracket = Bracket(problem.feasible_value, limits, on_progress, cutoff, relaxed=relaxed)
    bracket.low = problem.lower_bound()
    return bracket
