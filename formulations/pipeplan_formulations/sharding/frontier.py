"""The exact Pareto set of a sharding's choices over all coordinates."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.sharding.bounded import bounded_frontier
from pipeplan_formulations.sharding.elimination import Algebra, Elimination
from pipeplan_formulations.sharding.instance import Array, Choice, Sharding
from pipeplan_formulations.sharding.scalars import Scalars
from pipeplan_formulations.sharding.sets import Sets

MANY = 96
"""Number of operators from which on the Pareto set of two sums is found with bounds."""


@dataclass(frozen=True, eq=False)
class Frontier:
    """Costs of choices none of which dominates another.

    Attributes
    ----------
    points : array of int, shape (P, D)
        In lexicographic order; empty if no choice is possible.
    """

    points: Array
    _unwind: Callable[[Array], Choice] = field(repr=False)

    def choice(self, point: int) -> Choice:
        """Signature of each operator in a choice that costs ``points[point]``."""
        return self._unwind(self.points[point])


def frontier(problem: Sharding, clock: Clock) -> Frontier:
    """Return the Pareto set of all choices.

    Raises
    ------
    OutOfTimeError
    TooLargeError
        If the graph is too entangled for tables. `solve` may still find least weighted sums.
    """
    if problem.coordinates == 2 and not problem.maxima and len(problem.costs) >= MANY:
        return Frontier(*bounded_frontier(problem, clock))
    return eliminated(problem, clock)


def eliminated(problem: Sharding, clock: Clock) -> Frontier:
    """Return the Pareto set by elimination without bounds; see `frontier` for the errors."""
    algebra: Algebra[Any] = (
        Scalars(clock, problem.maxima > 0)
        if problem.coordinates == 1
        else Sets(clock, problem.coordinates, problem.maxima)
    )
    elimination = Elimination[Any](problem, algebra)
    elimination.run()
    table = elimination.result()
    [number] = elimination.live
    return Frontier(table.at(()), lambda point: elimination.unwind({number: point}))
