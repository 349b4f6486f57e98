"""The fractional chain partition problem by CBC, with real shares."""

from dataclasses import replace
from functools import partial

from pipeplan_formulations.common.mip.cbc import CBC, solve_cbc
from pipeplan_formulations.common.report import Limits, Progress, Report
from pipeplan_formulations.fractional.by_rows import solve_by_rows
from pipeplan_formulations.fractional.instance import FractionalPartition, Positions

SOLVER = replace(CBC, solve=partial(solve_cbc, preprocess=False))


def solve(
    problem: FractionalPartition,
    limits: Limits,
    hint: Positions | None = None,
    progress: Progress | None = None,
    bound: int = 0,
) -> Report[Positions]:
    """Minimise T; see `solve_by_rows` for the parameters."""
    return solve_by_rows(SOLVER, problem, limits, hint, progress, bound)
