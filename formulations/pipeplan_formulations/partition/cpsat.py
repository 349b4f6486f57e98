"""The chain partition problem by CP-SAT: the rows of `linear`, a complete hint, and the dynamic programme's bound."""

from pipeplan_formulations.common.mip.cpsat import CPSAT
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
    """Minimise T under (1) to (8); see `solve_by_rows`."""
    return solve_by_rows(CPSAT, problem, limits, hint, progress, start)
