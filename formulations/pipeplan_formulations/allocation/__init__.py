"""Contiguous layers of a chain, with devices of several kinds, to a pipeline of any depth and widths."""

from importlib import import_module

from pipeplan_formulations.allocation.frontier import frontier
from pipeplan_formulations.allocation.problem import Allocation, ChainAllocation, Mode, Place
from pipeplan_formulations.report import Limits, Progress, Report

__all__ = ["BACKENDS", "Allocation", "ChainAllocation", "Mode", "Place", "frontier", "solve"]

BACKENDS = ("exact",)
"""The ways to solve the problem: one file each."""


def solve(
    problem: ChainAllocation,
    limits: Limits,
    hint: Allocation | None = None,
    progress: Progress | None = None,
    backend: str = "exact",
) -> Report[Allocation]:
    """Solve by one of `BACKENDS`; a solver's package is imported when it is asked for.

    Raises
    ------
    ValueError
        If there is no such backend.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is not known; choose from {', '.join(BACKENDS)}")
    report: Report[Allocation] = import_module(f"{__name__}.{backend}").solve(problem, limits, hint, progress)
    return report
