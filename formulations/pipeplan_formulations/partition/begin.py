"""Where a solver of rows begins: the dynamic programme's bound and partition, or what the caller knows already."""

from dataclasses import replace

from pipeplan_formulations.common.report import Limits, Progress, Report
from pipeplan_formulations.partition import exact
from pipeplan_formulations.partition.instance import Boundaries, ChainPartition

SHARE = 1 / 3
"""Part of the time limit that the dynamic programme may use."""


def begin(
    problem: ChainPartition,
    limits: Limits,
    hint: Boundaries | None,
    progress: Progress | None,
    start: Report[Boundaries] | None,
) -> Report[Boundaries]:
    """``start``, or else the dynamic programme's report.

    Raises
    ------
    ValueError
        If the partition of ``start`` breaks (1), or its objective is not the partition's.
    """
    if start is None:
        return exact.solve(problem, replace(limits, time=limits.time * SHARE), hint, progress)
    if start.solution is not None and not problem.feasible(start.solution):
        raise ValueError(f"the start {start.solution} is not a partition that keeps (1)")
    if start.solution is not None and problem.evaluate(start.solution) != start.objective:
        raise ValueError(f"the start is worth {problem.evaluate(start.solution)}, not {start.objective}")
    return start
