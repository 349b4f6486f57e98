"""Arguments and processes of ``pipeplan run`` under other launchers."""

import os
import sys
from pathlib import Path

from helpers.distributed.lasting import lasting_plan

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def pipeplan_run(folder: Path, *options: str) -> tuple[str, ...]:
    """Arguments of ``python``: a plan for two ranks, run without warm-up, its report as JSON."""
    plan = folder / "plan.json"
    lasting_plan(2).save(plan)
    return (
        "-m",
        "pipeplan.cli",
        "run",
        str(plan),
        "helpers.distributed.lasting:unhurried",
        "--warmup",
        "0",
        "--json",
        *options,
    )


def children(process: int) -> list[int]:
    """Processes that a process started, and those that they started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        if parent == process:
            found += [int(entry.parent.name), *children(int(entry.parent.name))]
    return found
