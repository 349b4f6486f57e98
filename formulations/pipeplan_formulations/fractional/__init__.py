"""A row of layers to a row of devices, where a layer may be divided between neighbours."""

from pipeplan_formulations.common.backends import backend_of
from pipeplan_formulations.common.report import Limits, Progress, Report
from pipeplan_formulations.fractional.instance import FractionalPartition, Positions
from pipeplan_formulations.fractional.rounding import rounded

__all__ = ["BACKENDS", "FractionalPartition", "Positions", "rounded", "solve"]

BACKENDS = ("exact", "cbc", "cpsat")
"""The ways to solve the problem: one file each."""


def solve(
    problem: FractionalPartition,
    limits: Limits,
    hint: Positions | None = None,
    progress: Progress | None = None,
    backend: str = "exact",
) -> Report[Positions]:
    """Solve by one of `BACKENDS`; a solver's package is imported when it is asked for.

    Raises
    ------
    ValueError
        If there is no such backend.
    """
    report: Report[Positions] = backend_of(__name__, backend, BACKENDS).solve(problem, limits, hint, progress)
    return report
