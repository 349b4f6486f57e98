"""Pipeline scheduling: the order of all forwards and backwards on every device."""

from pipeplan_formulations.common.backends import Backend, backend_of
from pipeplan_formulations.common.report import Limits, Progress, Report
from pipeplan_formulations.schedule import auto, cpsat
from pipeplan_formulations.schedule.bounds import lower_bound
from pipeplan_formulations.schedule.instance import Kind, Op, Orders, PipelineSchedule
from pipeplan_formulations.schedule.objective import evaluate, feasible

__all__ = ["BACKENDS", "Kind", "Op", "Orders", "PipelineSchedule", "evaluate", "feasible", "lower_bound", "solve"]

BACKENDS: dict[str, Backend[PipelineSchedule, Orders]] = {
    "auto": auto,
    "cpsat": cpsat,
}
"""Back ends by name. ``auto``: CP-SAT, `long_steps`, or both; ``cpsat``: a model with intervals.

There are no rows for other solvers: those of pairs of operations prove little."""


def solve(
    problem: PipelineSchedule,
    limits: Limits,
    hint: Orders | None = None,
    on_progress: Progress | None = None,
    backend: str = "auto",
) -> Report[Orders]:
    """Solve by one of `BACKENDS`.

    Raises
    ------
    ValueError
        If there is no such backend.
    """
    return backend_of(BACKENDS, backend).solve(problem, limits, hint, on_progress)
