"""The chain partition problem: contiguous layers of a chain on the stages of a pipeline with given devices.

`instance` states the equations and lists the function that computes each. The back end 'exact' solves it by dynamic
programming (`minmax`, `pareto`), 'cpsat' and 'cbc' by a linear model (`linear`) that starts from its answer.
"""

from pipeplan_formulations.common.backends import Backend, backend_of
from pipeplan_formulations.common.mip import SOLVERS
from pipeplan_formulations.common.report import Limits, Progress, Report
from pipeplan_formulations.partition import exact
from pipeplan_formulations.partition.balance import balanced
from pipeplan_formulations.partition.by_rows import ByRows
from pipeplan_formulations.partition.instance import ChainPartition
from pipeplan_formulations.partition.parts import LinkResource, PathCut, Tie
from pipeplan_formulations.partition.tables import Boundaries

__all__ = ["BACKENDS", "Boundaries", "ChainPartition", "LinkResource", "PathCut", "Tie", "balanced", "solve"]

BACKENDS: dict[str, Backend[ChainPartition, Boundaries]] = {
    **{name: ByRows(solver) for name, solver in SOLVERS.items()},
    "exact": exact,
}
"""Back ends of the problem, by name."""


def solve(
    problem: ChainPartition,
    limits: Limits,
    hint: Boundaries | None = None,
    on_progress: Progress | None = None,
    backend: str = "cpsat",
    cutoff: int | None = None,
) -> Report[Boundaries]:
    """Solve by one of `BACKENDS`.

    ``cutoff``: values of at least this do not matter; only 'exact' uses it.

    Raises
    ------
    ValueError
        If no backend has this name.
    """
    if backend == "exact":
        return exact.solve(problem, limits, hint, on_progress, cutoff)
    return backend_of(BACKENDS, backend).solve(problem, limits, hint, on_progress)
