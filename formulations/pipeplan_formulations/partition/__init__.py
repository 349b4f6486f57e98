"""Contiguous layers of a chain to the stages of a pipeline."""

from pipeplan_formulations.backends import backend_of
from pipeplan_formulations.partition.parts import PathCut, Tie, Wire
from pipeplan_formulations.partition.problem import Boundaries, ChainPartition
from pipeplan_formulations.report import Limits, Progress, Report

__all__ = ["BACKENDS", "Boundaries", "ChainPartition", "PathCut", "Tie", "Wire", "solve"]

BACKENDS = ("cpsat", "cbc", "exact")
"""The ways to solve the problem: one file each."""


def solve(
    problem: ChainPartition,
    limits: Limits,
    hint: Boundaries | None = None,
    progress: Progress | None = None,
    backend: str = "cpsat",
    cutoff: int | None = None,
) -> Report[Boundaries]:
    """Solve by one of `BACKENDS`; a solver's package is imported when it is asked for.

    ``cutoff``: values from here on do not matter; only 'exact' makes use of it.

    Raises
    ------
    ValueError
        If there is no such backend.
    """
    chosen = backend_of(__name__, backend, BACKENDS)
    more = {"cutoff": cutoff} if backend == "exact" else {}
    report: Report[Boundaries] = chosen.solve(problem, limits, hint, progress, **more)
    return report
