"""A first solution: the best one whose stages are cut out of a few topological orders.

On one order the best cut is a dynamic programme of its own, and up to a quarter off; the union of many orders'
downsets lets stages change from one order to another, which costs little and is often best.
"""

from pipeplan_formulations.graph.bracket import Bracket
from pipeplan_formulations.graph.downsets import orders, prefixes
from pipeplan_formulations.graph.walk import TooLargeError, Walk

ORDERS = 50
"""Random topological orders."""
DOWNSETS = 1200
"""Most downsets of all orders together."""


def warm_start(bracket: Bracket) -> None:
    """Offer the best solution along one order, then along many.

    Raises
    ------
    OutOfTimeError
    """
    problem = bracket.problem
    some = orders(problem, min(ORDERS, max(1, DOWNSETS // problem.groups)), bracket.limits.seed)
    for family in ([some[0]], some):
        if not bracket.closed:
            try:
                cut(bracket, prefixes(family))
            except TooLargeError:
                return


def cut(bracket: Bracket, downsets: list[int], complete: bool = False) -> None:
    """Offer the best solution that runs through a family of downsets, if it beats the incumbent.

    ``complete`` says that the family holds every downset: what it does not allow is then proved impossible.

    Raises
    ------
    OutOfTimeError, TooLargeError
    """
    walk = Walk(bracket.problem, downsets, bracket.clock, bracket.ceiling - 1)
    loads = walk.loads()
    loads = loads[loads >= bracket.low]
    while not bracket.closed:
        loads = loads[loads < bracket.ceiling]
        if not len(loads):
            break
        # Anything at all comes first, then the middle of what may be the least load.
        target = int(loads[-1 if bracket.best is None else (len(loads) - 1) // 2])
        stages = walk.reach(target)
        if stages is not None:
            bracket.offer(stages)
            continue
        loads = loads[loads > target]
        if complete:
            bracket.raise_low(int(loads[0]) if len(loads) else bracket.ceiling)
    if complete and not bracket.closed:
        bracket.impossible = bracket.best is None
        bracket.raise_low(bracket.ceiling)
