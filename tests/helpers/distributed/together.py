"""What many tests do on ranks, at one start of these: starting them takes longer than most jobs."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pipeplan_executor import launch

Job: TypeAlias = tuple[Callable[..., Any], tuple[object, ...]]
"""What every rank calls, importable by name, with what arguments."""


def done(world: int, jobs: Mapping[str, Job]) -> dict[str, Any]:
    """What jobs find on so many ranks, one after the other."""
    return dict(zip(jobs, launch(_together, world, *jobs.values(), timeout=90), strict=True))


def _together(*jobs: Job) -> list[Any]:
    return [function(*arguments) for function, arguments in jobs]
