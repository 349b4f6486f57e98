"""Groups of a graph to the stages of a pipeline, so that the largest load is least."""

from pipeplan_formulations.common.backends import Backend, backend_of
from pipeplan_formulations.common.mip.cbc import CBC
from pipeplan_formulations.common.mip.cpsat import CPSAT
from pipeplan_formulations.common.report import Limits, Progress, Report
from pipeplan_formulations.graph import auto, exact
from pipeplan_formulations.graph.by_rows import ByRows
from pipeplan_formulations.graph.instance import GraphPartition, GraphStage, Stages, Star
from pipeplan_formulations.graph.mode import Border, GraphMode, Line

__all__ = ["BACKENDS", "Border", "GraphMode", "GraphPartition", "GraphStage", "Line", "Stages", "Star", "solve"]

cpsat, cbc = ByRows(CPSAT), ByRows(CBC)
BACKENDS: dict[str, Backend[GraphPartition, Stages]] = {"auto": auto, "cpsat": cpsat, "cbc": cbc, "exact": exact}
"""The ways to solve the problem, by name."""


def solve(
    problem: GraphPartition,
    limits: Limits,
    hint: Stages | None = None,
    progress: Progress | None = None,
    backend: str = "auto",
) -> Report[Stages]:
    """Solve by one of `BACKENDS`.

    ``auto`` counts the downsets: the dynamic programme where they are few, CP-SAT first where they are many.

    Raises
    ------
    ValueError
        If there is no such backend.
    """
    return backend_of(BACKENDS, backend).solve(problem, limits, hint, progress)
