"""Contiguous layers of a chain, with devices of several kinds, to a pipeline of any depth and widths."""

from pipeplan_formulations.allocation import exact
from pipeplan_formulations.allocation.instance import ChainAllocation, InFlightRule
from pipeplan_formulations.allocation.mip.by_depth import ByDepth
from pipeplan_formulations.allocation.place import Allocation, ModeKey, Place
from pipeplan_formulations.allocation.suffix_bounds.suffix import frontier
from pipeplan_formulations.common.backends import Backend, backend_of
from pipeplan_formulations.common.mip.cbc import CBC
from pipeplan_formulations.common.mip.cpsat import CPSAT
from pipeplan_formulations.common.report import Limits, Progress, Report

__all__ = ["BACKENDS", "Allocation", "ChainAllocation", "InFlightRule", "ModeKey", "Place", "frontier", "solve"]

cpsat, cbc = ByDepth(CPSAT), ByDepth(CBC)
BACKENDS: dict[str, Backend[ChainAllocation, Allocation]] = {"exact": exact, "cpsat": cpsat, "cbc": cbc}
"""The ways to solve the problem, by name. The solvers are for small instances."""


def solve(
    problem: ChainAllocation,
    limits: Limits,
    hint: Allocation | None = None,
    progress: Progress | None = None,
    backend: str = "exact",
    cutoff: int | None = None,
    known: int = 0,
) -> Report[Allocation]:
    """Solve by one of `BACKENDS`.

    With a ``cutoff`` only values below it matter: once there is none, the answer is the bound ``cutoff``, and its
    status is unknown. ``known`` is a bound that an earlier call proved. Solvers take no notice of either.

    Raises
    ------
    ValueError
        If there is no such backend.
    """
    if backend == exact.NAME:
        return exact.solve(problem, limits, hint, progress, cutoff, known)
    return backend_of(BACKENDS, backend).solve(problem, limits, hint, progress)
