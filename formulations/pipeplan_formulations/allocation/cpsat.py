"""The chain allocation problem by CP-SAT, depth by depth: an independent opinion on small instances."""

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.place import Allocation
from pipeplan_formulations.allocation.suffix_bounds.by_depth import solve_by_depth
from pipeplan_formulations.common.mip.cpsat import CPSAT
from pipeplan_formulations.common.report import Limits, Progress, Report


def solve(
    problem: ChainAllocation, limits: Limits, hint: Allocation | None = None, progress: Progress | None = None
) -> Report[Allocation]:
    """Minimise T under (1) to (4), or the bottleneck; see `exact.solve` for the parameters."""
    return solve_by_depth(CPSAT, problem, limits, hint, progress)
