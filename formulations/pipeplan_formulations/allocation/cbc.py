"""The chain allocation problem by CBC, depth by depth: the same rows, a second opinion from another kind of solver."""

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.place import Allocation
from pipeplan_formulations.allocation.suffix_bounds.by_depth import solve_by_depth
from pipeplan_formulations.common.mip.cbc import CBC
from pipeplan_formulations.common.report import Limits, Progress, Report


def solve(
    problem: ChainAllocation, limits: Limits, hint: Allocation | None = None, progress: Progress | None = None
) -> Report[Allocation]:
    """Minimise T under (1) to (4), or the bottleneck; see `exact.solve` for the parameters."""
    return solve_by_depth(CBC, problem, limits, hint, progress)
