"""Writer and reader of plan files, which `pipeplan.core.plan.Plan.save` and ``load`` call.

The format belongs to `pipeplan.io`, which knows the classes of core and not the other way round. So the package, which
knows both, names the functions here when it is imported.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class PlanFiles(NamedTuple):
    """``write(plan, path)`` and ``read(path)``, which returns a plan."""

    write: Callable[[Any, Path], None]
    read: Callable[[Path], Any]


_NAMED: list[PlanFiles] = []


def name_plan_files(write: Callable[[Any, Path], None], read: Callable[[Path], Any]) -> None:
    """Name the functions that write and read plan files."""
    _NAMED[:] = [PlanFiles(write, read)]


def plan_files() -> PlanFiles:
    """Return the functions that were named."""
    return _NAMED[0]
