"""Operator sharding: one signature per operator of a graph; frontiers, and least weighted sums under caps."""

from collections.abc import Sequence

from pipeplan_formulations.common.backends import Backend, backend_of
from pipeplan_formulations.common.mip import SOLVERS
from pipeplan_formulations.common.report import Limits, Progress, Report
from pipeplan_formulations.sharding import descent, exact
from pipeplan_formulations.sharding.blocks import Block, chain
from pipeplan_formulations.sharding.by_rows import ByRows
from pipeplan_formulations.sharding.elimination import TooLargeError
from pipeplan_formulations.sharding.frontier import Frontier, Frontiers, frontier
from pipeplan_formulations.sharding.instance import Cap, Choice, Edge, Sharding, WeightedSharding

__all__ = [
    "BACKENDS",
    "Block",
    "Cap",
    "Choice",
    "Edge",
    "Frontier",
    "Frontiers",
    "Sharding",
    "TooLargeError",
    "WeightedSharding",
    "chain",
    "frontier",
    "solve",
]

BACKENDS: dict[str, Backend[WeightedSharding, Choice]] = {
    "exact": exact,
    "descent": descent,
    **{name: ByRows(solver) for name, solver in SOLVERS.items()},
}
"""Back ends by name."""


def solve(
    problem: Sharding,
    weights: Sequence[int],
    caps: Sequence[Cap],
    limits: Limits,
    hint: Choice | None = None,
    on_progress: Progress | None = None,
    backend: str = "exact",
) -> Report[Choice]:
    """Minimise a weighted sum of the costs under caps, by one of `BACKENDS`.

    Parameters
    ----------
    problem : Sharding
    weights : sequence of int
        One for each coordinate that is a sum.
    caps : sequence of Cap
    limits, hint, on_progress
        See `exact.solve`.
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
