"""Fractional chain partition: a sequence of layers on a line of devices; neighbours may share a layer."""

from dataclasses import replace
from functools import partial

from pipeplan_formulations.common.backends import Backend, backend_of
from pipeplan_formulations.common.mip import SOLVERS
from pipeplan_formulations.common.mip.cbc import CBC, solve_cbc
from pipeplan_formulations.common.mip.cpsat import CPSAT
from pipeplan_formulations.common.report import Limits, Progress, Report
from pipeplan_formulations.fractional import exact
from pipeplan_formulations.fractional.by_rows import PARTS, ByRows
from pipeplan_formulations.fractional.instance import FractionalPartition, Positions
from pipeplan_formulations.fractional.rounding import rounded

__all__ = ["BACKENDS", "FractionalPartition", "Positions", "rounded", "solve"]

cpsat = ByRows(CPSAT, PARTS)
cbc = ByRows(replace(CBC, solve=partial(solve_cbc, preprocess=False)))
BACKENDS: dict[str, Backend[FractionalPartition, Positions]] = {
    "exact": exact,
    **{name: ByRows(solver) for name, solver in SOLVERS.items()},
    "cbc": cbc,
    "cpsat": cpsat,
}
"""Back ends by name."""


def solve(
    problem: FractionalPartition,
    limits: Limits,
    hint: Positions | None = None,
    on_progress: Progress | None = None,
    backend: str = "exact",
) -> Report[Positions]:
    """Solve by one of `BACKENDS`.

    Raises
    ------
    ValueError
        If there is no such backend.
    """
    return backend_of(BACKENDS, backend).solve(problem, limits, hint, on_progress)
