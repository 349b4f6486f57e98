"""Exact back end: the dynamic programme over all downsets, an oracle, and the fastest solver if downsets are few."""

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.clock import OutOfTimeError
from pipeplan_formulations.common.report import Limits, Progress, Report, Stop
from pipeplan_formulations.graph.downsets import all_downsets
from pipeplan_formulations.graph.fronts import TooLargeError
from pipeplan_formulations.graph.instance import GraphPartition, Stages
from pipeplan_formulations.graph.warm import DOWNSETS, open_bracket, solve_family, warm_start

NAME = "exact"
MOST = 20_000
"""Largest number of downsets that are enumerated."""


def solve(
    problem: GraphPartition, limits: Limits, hint: Stages | None = None, on_progress: Progress | None = None
) -> Report[Stages]:
    """Minimise T under order, pools and memory limit.

    Parameters
    ----------
    problem : GraphPartition
    limits : Limits
        ``workers`` is not used, ``seed`` chooses the orders of the warm start.
    hint : stages, optional
        Solution to start from; ignored if it is not feasible.
    on_progress : callable, optional
        See `Progress`.

    Returns
    -------
    Report
        If there are more downsets or stages than memory holds: the warm start's solution and the lower bound without
        a solver, with stop reason 'error'.
    """
    bracket = open_bracket(problem, limits, on_progress, hint)
    stop = Stop.GAP
    try:
        downsets = all_downsets(problem, MOST)
        warm_start(problem, bracket, many=downsets is None or len(downsets) > DOWNSETS)
        search(problem, bracket, downsets)
    except OutOfTimeError:
        stop = Stop.TIME
    except TooLargeError:
        stop = Stop.ERROR
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
    return bracket.report(stop, NAME)


def search(problem: GraphPartition, bracket: Bracket[Stages], downsets: list[int] | None) -> None:
    """Close the bracket to the requested gap by the dynamic programme over all downsets.

    Raises
    ------
    OutOfTimeError
    TooLargeError
        If ``downsets`` is None, or there are too many stages between them.
    """
    if bracket.closed:
        return
    if downsets is None:
        raise TooLargeError
    solve_family(problem, bracket, downsets, complete=True)
