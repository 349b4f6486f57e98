"""The exact Pareto set of a sharding's choices over all coordinates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.sharding.bounded import bounded_frontier
from pipeplan_formulations.sharding.elimination import Algebra, Elimination
from pipeplan_formulations.sharding.instance import Array, Cap, Choice, Sharding
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
    slack : array of int, shape (D,)
        Every choice of costs c has a point of at most c + slack. It is 0 unless sets were thinned.
    """

    points: Array
    slack: Array
    _unwind: Callable[[Array], Choice] = field(repr=False)

    @property
    def exact(self) -> bool:
        """True if the points are the whole Pareto set."""
        return not self.slack.any()

    def choice(self, point: int) -> Choice:
        """Signature of each operator in a choice that costs ``points[point]``."""
        return self._unwind(self.points[point])

    def lower_bound(self, weights: Sequence[int]) -> int | None:
        """Lower bound on the weighted sum of the coordinates of any choice; None if there is no choice."""
        values = np.maximum(self.points - self.slack, 0).astype(object) @ np.array(weights, object)
        return int(values.min()) if len(values) else None


class Frontiers:
    """Frontiers of a problem, one for each combination of the signatures of some operators.

    Parameters
    ----------
    problem : Sharding
    clock : Clock
    keep : sequence of int
        These operators.
    most : int, optional
        Longer Pareto sets are thinned to this length, at each step of the elimination.
    caps : sequence of Cap
        Choices that exceed one of them are left out.

    Raises
    ------
    OutOfTimeError
    TooLargeError
        If the graph is too entangled for tables. `solve` may still find least weighted sums.
    """

    def __init__(
        self,
        problem: Sharding,
        clock: Clock,
        keep: Sequence[int] = (),
        most: int | None = None,
        caps: Sequence[Cap] = (),
    ) -> None:
        width = problem.coordinates
        self._keep = tuple(sorted(keep))
        algebra: Algebra[Any] = (
            Scalars(clock, problem.maxima > 0)
            if width == 1 and not caps
            else Sets(clock, width, problem.maxima, caps, most)
        )
        self._elimination = Elimination[Any](problem, algebra, keep)
        self._elimination.run()
        self._table = self._elimination.result()

    def at(self, signatures: Sequence[int] = ()) -> Frontier:
        """Frontier of the choices with these signatures of the operators in ``keep``, by ascending operator."""
        cell = tuple(signatures)
        [number] = self._elimination.live

        def unwind(point: Array) -> Choice:
            return self._elimination.unwind(dict(zip(self._keep, cell, strict=True)), {number: point})

        return Frontier(self._table.at(cell), self._table.slack, unwind)


def frontier(problem: Sharding, clock: Clock, most: int | None = None) -> Frontier:
    """The Pareto set of all choices; see `Frontiers` for parameters and errors."""
    if problem.coordinates == 2 and not problem.maxima and most is None and len(problem.costs) >= MANY:
        points, unwind = bounded_frontier(problem, clock)
        return Frontier(points, np.zeros(2, np.int64), unwind)
    return Frontiers(problem, clock, most=most).at()
