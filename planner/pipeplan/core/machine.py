"""`Machine`: the computer that gave an answer, and the versions of what it ran."""

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipeplan.core.version import __version__, installed_version


@dataclass(frozen=True, slots=True)
class Machine:
    """A computer and its software; the version of a package that is not installed is empty."""

    machine: str = ""
    processor: str = ""
    cores: int = 0
    pipeplan: str = ""
    python: str = ""
    ortools: str = ""
    pulp: str = ""
    torch: str = ""


@cache
def this_machine() -> Machine:
    """Return the computer that this process runs on. ``cores`` are those that the process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0
    versions = {name: installed_version(name) for name in ("ortools", "pulp", "torch")}
    return Machine(platform.node(), cpu_name(), cores, __version__, platform.python_version(), **versions)


def cpu_name() -> str:
    """Name of the processor, as the operating system reports it."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
