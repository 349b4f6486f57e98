"""A row of layers to a row of devices, where a layer may be divided between neighbours."""

from pipeplan_formulations.common.backends import Backend, backend_of
from pipeplan_formulations.common.report import Limits, Progress, Report
from pipeplan_formulations.fractional import cbc, cpsat, exact
from pipeplan_formulations.fractional.instance import FractionalPartition, Positions
from pipeplan_formulations.fractional.rounding import rounded

__all__ = ["BACKENDS", "FractionalPartition", "Positions", "rounded", "solve"]

BACKENDS: dict[str, Backend[FractionalPartition, Positions]] = {"exact": exact, "cbc": cbc, "cpsat": cpsat}
"""The ways to solve the problem, one module each, by name."""


def solve(
    problem: FractionalPartition,
    limits: Limits,
    hint: Positions | None = None,
    progress: Progress | None = None,
    backend: str = "exact",
) -> Report[Positions]:
    """Solve by one of `BACKENDS`.

    Raises
    ------
    ValueError
        If there is no such backend.
    """
    return backend_of(BACKENDS, backend).solve(problem, limits, hint, progress)
