"""Exported orders run in torch's own pipeline runtime."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.distributed import torch_runtime
from helpers.distributed.found_cases import found_cases
from helpers.distributed.together import Job
from pipeplan.core.schedule import Schedule
from pipeplan.io.export.torch_csv import write_torch_csv
from pipeplan.schedules import FAMILIES, PLACED

WORLD, MICRO_BATCHES = 2, 4


def orders() -> dict[str, Schedule]:
    """Families with one and two stages per rank, and searched orders."""
    found = {name: FAMILIES[name].write((1,) * WORLD, MICRO_BATCHES) for name in ("gpipe", "1f1b-sno")}
    for name in ("zb-h1", "interleaved", "zb-v", "v-half"):
        found[name] = PLACED[name].write(WORLD, MICRO_BATCHES, PLACED[name].chunks or 2)
    for number, case in enumerate(found_cases(WORLD, seed=5)):
        schedule = case.plan.schedule
        if all(len(homes) == 1 for homes in schedule.homes):
            found[f"found {number}"] = schedule
    return found


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of torch's runtime on two ranks."""
    if world != WORLD:
        return {}
    files = {}
    for name, schedule in orders().items():
        write_torch_csv(schedule, folder / f"{name}.csv")
        files[name] = str(folder / f"{name}.csv"), schedule.stages, schedule.micro_batches
    return {"torch runtime": (torch_runtime.worst_errors, (files,))}


def test_torchs_runtime_runs_our_orders(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Exported, loaded by torch and run there, every order gives the gradients of the unsplit model."""
    errors = ranks(WORLD)["torch runtime"]
    assert len(errors) >= 9
    assert errors == dict.fromkeys(errors, pytest.approx(0, abs=1e-12))
