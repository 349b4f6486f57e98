"""The fractional chain partition problem by CP-SAT: shares are whole numbers of `PARTS` parts of a layer.

The rows leave out what rounding to parts may add (`linear`), so CP-SAT's bound holds for real shares. What it finds is
judged on the real rows; between the two lies about one part in `PARTS`.
"""

from pipeplan_formulations.common.mip.cpsat import CPSAT
from pipeplan_formulations.common.report import Limits, Progress, Report
from pipeplan_formulations.fractional.by_rows import solve_by_rows
from pipeplan_formulations.fractional.instance import FractionalPartition, Positions

PARTS = 2**10
"""Parts of each layer."""


def solve(
    problem: FractionalPartition,
    limits: Limits,
    hint: Positions | None = None,
    progress: Progress | None = None,
    bound: int = 0,
) -> Report[Positions]:
    """Minimise T; see `solve_by_rows` for the parameters."""
    return solve_by_rows(CPSAT, problem, limits, hint, progress, bound, PARTS)
