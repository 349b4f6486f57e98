"""Operator sharding: one signature per operator of a graph; frontiers, and least weighted sums under caps."""

from collections.abc import Sequence

from pipeplan_formulations.common.backends import Backend, backend_of
from pipeplan_formulations.common.mip import SOLVERS
from pipeplan_formulations.common.report import Limits, Progress, Report
from pipeplan_formulations.sharding.by_rows import ByRows
from pipeplan_formulations.sharding.elimination import TooLargeError
from pipeplan_formulations.sharding.frontier import Frontier, frontier
from pipeplan_formulations.sharding.instance import Cap, Choice, Edge, Sharding, WeightedSharding
from pipeplan_formulations.sharding.least import least_choice, least_sums

__all__ = [
    "BACKENDS",
    "Cap",
    "Choice",
    "Edge",
    "Frontier",
    "Sharding",
    "TooLargeError",
    "WeightedSharding",
    "frontier",
    "least_choice",
    "least_sums",
    "solve",
]

BACKENDS: dict[str, Backend[WeightedSharding, Choice]] = {name: ByRows(solver) for name, solver in SOLVERS.items()}
"""Back ends by name."""


def solve(
    problem: Sharding,
    weights: Sequence[int],
    caps: Sequence[Cap],
    limits: Limits,
    hint: Choice | None = None,
    on_progress: Progress | None = None,
    backend: str = "cpsat",
) -> Report[Choice]:
    """Minimise a weighted sum of the costs under caps, by one of `BACKENDS`.

    Parameters
    ----------
    problem : Sharding
    weights : sequence of int
        One for each coordinate that is a sum.
    caps : sequence of Cap
    limits : Limits
    hint : choice, optional
        A solution to start from; ignored if it is none.
    on_progress : callable, optional
        See `Progress`.
    backend : str

    Raises
    ------
    ValueError
        If there is no such backend, or the weights do not fit the problem.
    BeyondIntegersError
        If weighted sums are too large.
    """
    question = WeightedSharding(problem, tuple(weights), tuple(caps))
    return backend_of(BACKENDS, backend).solve(question, limits, hint, on_progress)
