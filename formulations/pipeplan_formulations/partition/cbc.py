"""The chain partition problem by CBC: the same rows, a second opinion from another kind of solver."""

from pipeplan_formulations.common.mip.cbc import CBC
from pipeplan_formulations.common.report import Limits, Progress, Report
from pipeplan_formulations.partition.by_rows import solve_by_rows
from pipeplan_formulations.partition.instance import Boundaries, ChainPartition


def solve(
    problem: ChainPartition,
    limits: Limits,
    hint: Boundaries | None = None,
    progress: Progress | None = None,
    start: Report[Boundaries] | None = None,
) -> Report[Boundaries]:
    """Minimise T under (1) to (8); see `solve_by_rows`. ``progress`` hears of the start only."""
    return solve_by_rows(CBC, problem, limits, hint, progress, start)
