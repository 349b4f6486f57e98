"""The fastest choice that fits, by a mixed-integer programme for each mesh (`pipeplan_formulations.sharding.linear`).

Frontiers take tables whose size depends on how entangled the operators are. A programme has a variable for each
signature and each pair of neighbouring ones, whatever the graph, and says how far its choice may be from the best.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.errors import PipeplanError
from pipeplan.costs.sharding.clusters import shape_name
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Status
from pipeplan_formulations.sharding import Cap, Choice, solve


class Solved(NamedTuple):
    """A choice on a mesh, its costs, and a lower bound on the first of these for all choices that fit."""

    costs: tuple[int, ...]
    problem: MeshProblem
    choice: Choice
    bound: int


def fastest(
    problems: Sequence[MeshProblem], matrix: NDArray[np.int64], limit: int, limits: Limits, backend: str
) -> Solved | None:
    """Return the choice of least time within a limit of memory; None if no choice fits on any mesh.

    Parameters
    ----------
    problems : sequence of MeshProblem
        One for each mesh; each gets an equal share of the time that is left.
    matrix : array of int, shape (2, coordinates)
        Combines the coordinates to nanoseconds and bytes.
    limit : int
        Bytes of a device.
    limits : Limits
    backend : str
        A name in `pipeplan_formulations.sharding.BACKENDS`.

    Raises
    ------
    PipeplanError
        If the time was over before a choice was found.
    """
    clock, found, bounds = Clock(limits), list[Solved](), list[int]()
    for number, problem in enumerate(problems):
        share = max(clock.left, 0.0) / (len(problems) - number)
        sharding = problem.sharding.project(matrix)
        report = solve(sharding, (1, 0), (Cap((0, 1), limit),), replace(limits, time=share), backend=backend)
        if report.status is not Status.INFEASIBLE:
            bounds.append(report.bound)
        if report.solution is not None:
            costs = sharding.evaluate(report.solution)
            assert costs is not None, "solutions are possible choices"
            found.append(Solved(costs, problem, report.solution, report.bound))
    if found:
        return min(found, key=lambda each: each.costs)._replace(bound=min(bounds))
    if not bounds:
        return None
    names = " or ".join(shape_name(problem.mesh.sizes) for problem in problems)
    raise PipeplanError(
        f"{backend} found no choice on {names} in {limits.time:g} s; give it more time, name one mesh, or take the "
        "exact frontier (--backend exact)"
    )
