"""The exact Pareto set of a layer, or of a model, over several meshes of a team."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.pareto import front
from pipeplan_formulations.sharding import Choice, Frontier, frontier


class Point(NamedTuple):
    """Costs that no choice on any of the meshes dominates, and a choice that has them."""

    costs: tuple[int, ...]
    problem: MeshProblem
    found: Frontier
    number: int

    @property
    def choice(self) -> Choice:
        """The signature of each operator, and the placements of each sum."""
        return self.found.choice(self.number)


def over_meshes(problems: Iterable[MeshProblem], matrix: NDArray[np.int64], clock: Clock) -> tuple[Point, ...]:
    """Return the Pareto set over all meshes in lexicographic order; of equal costs those on the first mesh.

    Parameters
    ----------
    problems : iterable of MeshProblem
        One for each mesh.
    matrix : array of int
        Combines the coordinates, as in `Sharding.project`.
    clock : Clock

    Raises
    ------
    OutOfTimeError
    """
    found, first, best = [], dict[tuple[int, ...], tuple[int, int]](), np.zeros((0, len(matrix)), np.int64)
    for number, problem in enumerate(problems):
        own = frontier(problem.sharding.project(matrix), clock)
        found.append((problem, own))
        for k, costs in enumerate(own.points.tolist()):
            first.setdefault(tuple(costs), (number, k))
        best = front(np.concatenate([best, own.points]))
    rows = [(tuple(costs), *first[tuple(costs)]) for costs in best.tolist()]
    return tuple(Point(costs, *found[number], k) for costs, number, k in rows)
