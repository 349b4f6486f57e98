"""Jobs of many tests on one start of ranks, since starting them takes longer than most jobs."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from helpers.distributed.once import check_once
from pipeplan_executor import launch

Job: TypeAlias = tuple[Callable[..., Any], tuple[object, ...]]
"""A function that every rank calls, importable by name, and its arguments."""


def done(world: int, jobs: Mapping[str, Job]) -> dict[str, Any]:
    """Run jobs in order on this number of ranks and return their results."""
    return dict(zip(jobs, launch(_together, world, *jobs.values(), timeout=90), strict=True))


def _together(*jobs: Job) -> list[Any]:
    check_once()
    return [function(*arguments) for function, arguments in jobs]
