"""A first solution: the best one whose stages are cut out of a few topological orders.

On one order the best cut is a dynamic programme of its own, and up to a quarter off; the union of many orders'
downsets lets stages change from one order to another, which costs little and is often best.
"""

from collections.abc import Callable

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.clock import OutOfTimeError
from pipeplan_formulations.common.report import Limits, Progress, Stop
from pipeplan_formulations.graph.bounds import lower_bound
from pipeplan_formulations.graph.downsets import orders, prefixes
from pipeplan_formulations.graph.instance import GraphPartition, Stages
from pipeplan_formulations.graph.walk import TooLargeError, Walk

ORDERS = 50
"""Random topological orders."""
FACTORS = (1.1, 1.5, 3.0, 9.0)
"""Of the bound, up to which loads are allowed while nothing has been found; in the end all are."""
DOWNSETS = 1200
"""Most downsets of all orders together."""


def open_bracket(
    problem: GraphPartition, limits: Limits, progress: Progress | None = None, hint: Stages | None = None
) -> Bracket[Stages]:
    """The bracket of a graph partition: the bound that needs no solver, and the hint if it is feasible."""
    bracket: Bracket[Stages] = Bracket(problem.evaluate, limits, progress, largest=problem.largest)
    bracket.low = lower_bound(problem)
    bracket.impossible = bool(problem.depths) and min(problem.depths) > problem.most_stages
    if hint is not None and problem.feasible(hint):
        bracket.offer(hint)
    return bracket


def warm_start(problem: GraphPartition, bracket: Bracket[Stages], many: bool = True) -> None:
    """Offer the best solution along one order, and then, if ``many`` are wanted, along many.

    Raises
    ------
    OutOfTimeError
    """
    count = min(ORDERS, max(1, DOWNSETS // problem.groups)) if many else 0
    some = orders(problem, count, bracket.limits.seed)
    for family in ([some[0]], some) if many else ([some[0]],):
        if not bracket.closed:
            try:
                cut(problem, bracket, prefixes(family))
            except TooLargeError:
                return


def after_warm_start(
    problem: GraphPartition, bracket: Bracket[Stages], search: Callable[[GraphPartition, Bracket[Stages]], Stop]
) -> Stop:
    """Let ``search`` close the bracket after a warm start; why it stopped, also where time or patience ended first."""
    try:
        warm_start(problem, bracket)
        return search(problem, bracket)
    except OutOfTimeError:
        return Stop.TIME
    except KeyboardInterrupt:
        return Stop.INTERRUPT


def cut(problem: GraphPartition, bracket: Bracket[Stages], downsets: list[int], complete: bool = False) -> None:
    """Offer the best solution that runs through a family of downsets, if it beats the incumbent.

    ``complete`` says that the family holds every downset: what it does not allow is then proved impossible.

    Raises
    ------
    OutOfTimeError, TooLargeError
    """
    if bracket.best is None:
        _anything(problem, bracket, downsets, complete)
    if bracket.best is None or bracket.closed:
        return
    walk = Walk(problem, downsets, bracket.clock, bracket.ceiling - 1)
    loads = walk.loads()
    while not bracket.closed:
        loads = loads[(loads >= bracket.low) & (loads < bracket.ceiling)]
        if not len(loads):
            break
        target = int(loads[(len(loads) - 1) // 2])
        stages = walk.reach(target)
        if stages is not None:
            bracket.offer(stages)
            continue
        loads = loads[loads > target]
        if complete:
            bracket.raise_low(int(loads[0]) if len(loads) else bracket.ceiling)
    if complete and not bracket.closed:
        bracket.raise_low(bracket.ceiling)


def _anything(problem: GraphPartition, bracket: Bracket[Stages], downsets: list[int], complete: bool) -> None:
    """Offer a first solution, looked for from the bound upwards, as small loads make few stages."""
    largest = problem.largest
    for most in (*(min(int(bracket.low * factor), largest - 1) for factor in FACTORS), largest):
        if most < bracket.low:
            continue
        stages = Walk(problem, downsets, bracket.clock, most).reach(most)
        if stages is not None:
            bracket.offer(stages)
            return
        if complete:
            bracket.raise_low(min(most + 1, largest))
    bracket.impossible = complete
