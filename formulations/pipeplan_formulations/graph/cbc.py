"""The bottleneck partition of a graph by the rows of `prefix` and CBC, which learns the warm start's value only."""

from pipeplan_formulations.common.mip.cbc import CBC
from pipeplan_formulations.common.report import Limits, Progress, Report
from pipeplan_formulations.graph.by_rows import solve_by_rows
from pipeplan_formulations.graph.instance import GraphPartition, Stages


def solve(
    problem: GraphPartition, limits: Limits, hint: Stages | None = None, progress: Progress | None = None
) -> Report[Stages]:
    """Minimise T under (1) to (3); see `exact.solve` for the parameters."""
    return solve_by_rows(CBC, problem, limits, hint, progress)
