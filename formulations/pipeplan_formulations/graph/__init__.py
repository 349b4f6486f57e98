"""Graph partition: assign groups of a graph's nodes to pipeline stages so that the largest stage load is minimal."""

from pipeplan_formulations.common.backends import Backend, backend_of
from pipeplan_formulations.common.mip import SOLVERS
from pipeplan_formulations.common.report import Limits, Progress, Report
from pipeplan_formulations.graph import auto, exact
from pipeplan_formulations.graph.by_rows import ByRows
from pipeplan_formulations.graph.instance import GraphPartition, GraphStage, Stages, Star
from pipeplan_formulations.graph.mode import Border, GraphMode, Line

__all__ = ["BACKENDS", "Border", "GraphMode", "GraphPartition", "GraphStage", "Line", "Stages", "Star", "solve"]

BACKENDS: dict[str, Backend[GraphPartition, Stages]] = {
    "auto": auto,
    **{name: ByRows(solver) for name, solver in SOLVERS.items()},
    "exact": exact,
}
"""Back ends by name."""


def solve(
    problem: GraphPartition,
    limits: Limits,
    hint: Stages | None = None,
    on_progress: Progress | None = None,
    backend: str = "auto",
) -> Report[Stages]:
    """Solve by one of `BACKENDS`.

    ``auto`` counts the downsets. It uses the dynamic programme if they are few, and CP-SAT first if they are many.

    Raises
    ------
    ValueError
        If there is no such backend.
    """
    return backend_of(BACKENDS, backend).solve(problem, limits, hint, on_progress)
