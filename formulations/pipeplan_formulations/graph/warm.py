"""Warm start: the best solution whose stages are intervals of a few topological orders.

On one order the best partition is a small dynamic programme, and up to a quarter above the optimum. The union of many
orders' downsets lets stages change from one order to another, which costs little and is often optimal. With many unlike
groups under a memory limit the choices of variants are too many for it; then there is the solution of `first`.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.report import Limits, Progress, Stop
from pipeplan_formulations.graph.bounds import lower_bound
from pipeplan_formulations.graph.downsets import orders, prefixes
from pipeplan_formulations.graph.first import first_plans
from pipeplan_formulations.graph.fronts import TooLargeError
from pipeplan_formulations.graph.instance import GraphPartition, Stages
from pipeplan_formulations.graph.walk import Walk

ORDERS = 50
"""Number of random topological orders."""
FACTORS = (1.1, 1.5, 3.0, 9.0)
"""Limits on the load in multiples of the lower bound, tried in turn until a solution is found; then no limit."""
MOST_SUMS = 4_000_000
"""Largest product of downsets and groups for variants in fractions."""
DOWNSETS = 1200
"""Largest number of downsets of all orders together."""


def open_bracket(
    problem: GraphPartition, limits: Limits, on_progress: Progress | None = None, hint: Stages | None = None
) -> Bracket[Stages]:
    """Create the bracket of a graph partition: the lower bound without a solver, and the hint if it is feasible."""

    def evaluate(stages: Stages) -> int | None:
        return problem.evaluate(stages) if problem.feasible(stages) else None

    bracket = Bracket(evaluate, limits, on_progress, largest=problem.largest)
    bracket.low = lower_bound(problem)
    bracket.impossible = problem.most_stages < min(problem.depths, default=1)
    if hint is not None:
        bracket.offer(hint)
    return bracket


def warm_start(problem: GraphPartition, bracket: Bracket[Stages], many: bool = True) -> bool:
    """Offer the best solution along one order, and then, if ``many``, along many orders.

    Returns
    -------
    bool
        False if there are too many stages, or choices of their variants, for the dynamic programme.

    Raises
    ------
    OutOfTimeError
    """
    if problem.variants > 1:
        first_plans(problem, bracket)
    count = min(ORDERS, max(1, DOWNSETS // problem.groups)) if many else 0
    some = orders(problem, count, bracket.limits.seed)
    for family in ([some[0]], some) if many else ([some[0]],):
        if not bracket.closed:
            try:
                solve_family(problem, bracket, prefixes(family))
            except TooLargeError:
                return False
    return True


def after_warm_start(
    problem: GraphPartition, bracket: Bracket[Stages], search: Callable[[GraphPartition, Bracket[Stages]], Stop]
) -> Stop:
    """Run the warm start, then ``search``; return the stop reason, also if time or an interrupt ended either."""
    try:
        warm_start(problem, bracket)
        return search(problem, bracket)
    except OutOfTimeError:
        return Stop.TIME
    except KeyboardInterrupt:
        return Stop.INTERRUPT


def solve_family(
    problem: GraphPartition, bracket: Bracket[Stages], downsets: list[int], complete: bool = False
) -> None:
    """Offer the best solution whose stages lie between the downsets of a family, if it beats the incumbent.

    ``complete``: the family holds every downset, so a target without a solution in it is proved impossible.

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
    """Offer a first solution. Targets rise from the lower bound, since small loads leave few candidate stages."""
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


def solve_divided(problem: GraphPartition, bracket: Bracket[Stages], downsets: list[int], seconds: float) -> None:
    """Close the bracket by the programme over all downsets, with variants in fractions until a solution needs them.

    It stays open where the least load of some stage is not known. There must be a solution, and the problem must be
    `fractions.divisible`.

    Raises
    ------
    OutOfTimeError, TooLargeError
    """
    if len(downsets) * problem.groups > MOST_SUMS:
        raise TooLargeError
    top = bracket.ceiling
    walk = Walk(problem, downsets, Clock(replace(bracket.limits, time=seconds)), top - 1, divided=True)
    loads = walk.loads()
    # Solutions of less than ``top`` are searched; none is below the bracket's bound. Where whole variants take more
    # than fractions, the stages of a solution get their loads, and the target is tried again.
    while not bracket.closed:
        loads = loads[(loads >= bracket.low) & (loads < top)]
        if not len(loads):
            bracket.raise_low(top)
            break
        target = int(loads[(len(loads) - 1) // 2])
        stages = walk.reach(target)
        if stages is None:
            loads = loads[loads > target]
            bracket.raise_low(int(loads[0]) if len(loads) else top)
            continue
        bracket.offer(stages)
        raised = walk.raised(target)
        if raised:
            loads = np.union1d(loads, raised)
        else:
            top = target
