"""Diagnosis of infeasible published workloads: the smallest memory found with which some stages fit."""

import time
from dataclasses import replace

from pipeplan.core.units import format_bytes
from pipeplan.core.wording import counted, wrapped
from pipeplan.io.published.workload import Published
from pipeplan_formulations import graph
from pipeplan_formulations.common.bisection import Least, least
from pipeplan_formulations.common.report import Limits, Report, Status
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.graph import GraphPartition, Stages

SECONDS = 10.0
"""Time limit of the search for the memory."""
KIB = 1024
ANY = 1.0
"""Relative gap at which any feasible stages are accepted."""


def why_nothing_fits(case: Published, backend: str, seconds: float = SECONDS) -> str:
    """Describe the available devices, the memory that some stages need, and the searched space."""
    problem = case.problem
    limits = {mode.limit for mode in problem.modes if mode.limit != UNLIMITED}
    there = f"{counted(max(problem.pools), 'device')}{_each(limits)}"
    lines = [f"No stages of {case.name} fit: there are {there}."]
    found = least_limit(problem, backend, seconds) if limits else None
    if found is not None:
        proof = "with less none fit, proved" if found.proved else "the least that was found in the time given"
        exact = f" ({found.number} B)" if found.number >= KIB else ""
        lines = [f"{lines[0]} What would fit: {format_bytes(found.number)}{exact} a device; {proof}."]
    elif limits:
        lines = [f"{lines[0]} No amount of memory was found to be sufficient."]
    return "\n".join([*lines, *wrapped(f"searched: {case.searched}")])


def least_limit(problem: GraphPartition, backend: str, seconds: float) -> Least | None:
    """Return the least common limit in bytes for all modes with a limit; None if no limit is found sufficient."""
    until = time.monotonic() + seconds

    def solved(limit: int) -> Report[Stages]:
        left = max(until - time.monotonic(), 0.0)
        return graph.solve(_limited(problem, limit), Limits(left, ANY), backend=backend)

    free = solved(UNLIMITED)
    if free.solution is None:
        return None

    def fits(limit: int) -> tuple[bool | None, int]:
        if time.monotonic() >= until:
            return None, limit
        report = solved(limit)
        if report.solution is None:
            return (False if report.status is Status.INFEASIBLE else None), limit
        return True, _needed(problem, report.solution)

    now = min(mode.limit for mode in problem.modes)
    return least(fits, now, _needed(problem, free.solution))


def _limited(problem: GraphPartition, limit: int) -> GraphPartition:
    modes = (mode if mode.limit == UNLIMITED else replace(mode, limit=limit) for mode in problem.modes)
    return replace(problem, modes=tuple(modes))


def _needed(problem: GraphPartition, stages: Stages) -> int:
    """Return the largest bytes of a stage whose mode has a limit."""
    rows = zip(stages, problem.memory(stages), strict=True)
    return max((size for stage, size in rows if problem.modes[stage.mode].limit != UNLIMITED), default=0)


def _each(limits: set[int]) -> str:
    return f" of {' and '.join(map(format_bytes, sorted(limits)))} each" if limits else ""
