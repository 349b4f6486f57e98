"""The chain allocation problem: contiguous layers of a chain on devices of several kinds, at any depth and widths.

`instance` states the equations and lists the function that computes each. The back end 'exact' bounds the optimum by a
dynamic programme (`suffix_bounds`) and closes the gap by a search (`best_first`); 'cpsat' and 'cbc' solve one linear
model for each number of stages (`mip`).
"""

from pipeplan_formulations.allocation import exact
from pipeplan_formulations.allocation.furthest_end import FurthestEnd
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.mip.by_depth import ByDepth
from pipeplan_formulations.allocation.place import Allocation, ModeKey, Place
from pipeplan_formulations.allocation.suffix_bounds.suffix import frontier
from pipeplan_formulations.allocation.tables import InFlightRule
from pipeplan_formulations.common.backends import Backend, backend_of
from pipeplan_formulations.common.mip import SOLVERS
from pipeplan_formulations.common.report import Limits, Progress, Report

__all__ = [
    "BACKENDS",
    "Allocation",
    "ChainAllocation",
    "FurthestEnd",
    "InFlightRule",
    "ModeKey",
    "Place",
    "frontier",
    "solve",
]

BACKENDS: dict[str, Backend[ChainAllocation, Allocation]] = {
    "exact": exact,
    **{name: ByDepth(solver) for name, solver in SOLVERS.items()},
}
"""Back ends of the problem, by name. The MIP solvers are for small instances."""


def solve(
    problem: ChainAllocation,
    limits: Limits,
    hint: Allocation | None = None,
    on_progress: Progress | None = None,
    backend: str = "exact",
    cutoff: int | None = None,
    known: int = 0,
) -> Report[Allocation]:
    """Solve by one of `BACKENDS`.

    Parameters
    ----------
    problem, limits, hint, on_progress
        See `exact.solve`.
    backend : str
        A name in `BACKENDS`.
    cutoff : int, optional
        Only values below it matter. Once it is proved that there are none, the answer is the bound ``cutoff`` with
        status unknown. Only 'exact' uses it.
    known : int
        A bound that an earlier call proved. Only 'exact' uses it.

    Raises
    ------
    ValueError
        If no backend has this name.
    """
    if backend == exact.NAME:
        return exact.solve(problem, limits, hint, on_progress, cutoff, known)
    return backend_of(BACKENDS, backend).solve(problem, limits, hint, on_progress)
