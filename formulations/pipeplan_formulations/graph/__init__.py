"""Groups of a graph to the stages of a pipeline, so that the largest load is least."""

from pipeplan_formulations.backends import backend_of
from pipeplan_formulations.graph.mode import UNLIMITED, Border, GraphMode, Line
from pipeplan_formulations.graph.problem import GraphPartition, GraphStage, Stages, Star
from pipeplan_formulations.report import Limits, Progress, Report

__all__ = [
    "BACKENDS",
    "UNLIMITED",
    "Border",
    "GraphMode",
    "GraphPartition",
    "GraphStage",
    "Line",
    "Stages",
    "Star",
    "solve",
]

BACKENDS = ("auto", "cpsat", "cbc", "exact")
"""The ways to solve the problem: one file each."""


def solve(
    problem: GraphPartition,
    limits: Limits,
    hint: Stages | None = None,
    progress: Progress | None = None,
    backend: str = "auto",
) -> Report[Stages]:
    """Solve by one of `BACKENDS`; a solver's package is imported when it is asked for.

    ``auto`` counts the downsets: the dynamic programme where they are few, CP-SAT first where they are many.

    Raises
    ------
    ValueError
        If there is no such backend.
    """
    report: Report[Stages] = backend_of(__name__, backend, BACKENDS).solve(problem, limits, hint, progress)
    return report
