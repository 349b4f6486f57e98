"""Forwards and backwards of a pipeline's stages to an order on every device."""

from pipeplan_formulations.common.backends import backend_of
from pipeplan_formulations.common.report import Limits, Progress, Report
from pipeplan_formulations.schedule.bounds import lower_bound
from pipeplan_formulations.schedule.instance import Kind, Op, Orders, PipelineSchedule
from pipeplan_formulations.schedule.objective import evaluate, feasible

__all__ = ["BACKENDS", "Kind", "Op", "Orders", "PipelineSchedule", "evaluate", "feasible", "lower_bound", "solve"]

BACKENDS = ("auto", "cpsat", "cbc", "exact")
"""The ways to solve the problem: one file each. ``auto`` chooses by size between CP-SAT and `cyclic`, or runs both."""


def solve(
    problem: PipelineSchedule,
    limits: Limits,
    hint: Orders | None = None,
    progress: Progress | None = None,
    backend: str = "auto",
) -> Report[Orders]:
    """Solve by one of `BACKENDS`; a solver's package is imported when it is asked for.

    Raises
    ------
    ValueError
        If there is no such backend.
    """
    report: Report[Orders] = backend_of(__name__, backend, BACKENDS).solve(problem, limits, hint, progress)
    return report
