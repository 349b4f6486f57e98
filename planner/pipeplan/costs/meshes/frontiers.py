"""The exact Pareto set of a layer over several meshes of a team."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeplan.costs.meshes.problem import MeshProblem
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.sharding import Choice, Frontier, frontier


class Point(NamedTuple):
    """Costs that no choice on any of the meshes dominates, and a choice that has them."""

    costs: tuple[int, ...]
    problem: MeshProblem
    found: Frontier
    number: int

    @property
    def choice(self) -> Choice:
        """The signature of each operator, and the layout of each sum."""
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
    every: list[Point] = []
    for problem in problems:
        found = frontier(problem.sharding.project(matrix), clock)
        every += [Point(tuple(costs), problem, found, k) for k, costs in enumerate(found.points.tolist())]
    every.sort(key=lambda point: point.costs)
    kept: list[Point] = []
    for point in every:
        if not any(all(a <= b for a, b in zip(other.costs, point.costs, strict=True)) for other in kept):
            kept.append(point)
    return tuple(kept)
