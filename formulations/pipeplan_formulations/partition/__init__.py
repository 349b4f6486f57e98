"""Contiguous layers of a chain to the stages of a pipeline."""

from importlib import import_module

from pipeplan_formulations.partition.path_cut import PathCut
from pipeplan_formulations.partition.problem import Boundaries, ChainPartition
from pipeplan_formulations.partition.tie import Tie
from pipeplan_formulations.report import Limits, Progress, Report

__all__ = ["BACKENDS", "Boundaries", "ChainPartition", "PathCut", "Tie", "solve"]

BACKENDS = ("cpsat", "cbc", "exact")
"""The ways to solve the problem: one file each."""


def solve(
    problem: ChainPartition,
    limits: Limits,
    hint: Boundaries | None = None,
    progress: Progress | None = None,
    backend: str = "cpsat",
) -> Report[Boundaries]:
    """Solve by one of `BACKENDS`; a solver's package is imported when it is asked for.

    Raises
    ------
    ValueError
        If there is no such backend.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is not known; choose from {', '.join(BACKENDS)}")
    report: Report[Boundaries] = import_module(f"{__name__}.{backend}").solve(problem, limits, hint, progress)
    return report
