"""Ranks that are killed or stopped at random moments: the run ends in time, and resumes from its checkpoint."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL, SIGSTOP, Signals
from typing import Any

import pytest
import torch

from helpers.distributed.lasting import STEPS, Killer, lasting_plan, undisturbed_run, unhurried
from helpers.distributed.together import Job
from pipeplan.core.errors import InputError
from pipeplan_executor import RunError, run
from pipeplan_executor.checkpoint import as_plain
from pipeplan_executor.checkpoint.folder import whole
from pipeplan_executor.train.saving import Saving

TIMEOUT = 12.0
START_UP = 120.0
"""Additional seconds on a busy machine: peers must start before they can miss a stopped rank."""
KILLS = 50
NAMED = {SIGKILL: "was killed by SIGKILL", SIGSTOP: "stood still"}


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of these tests on this number of ranks."""
    return {"undisturbed": (undisturbed_run, (str(folder),))} if world == 2 else {}


@pytest.fixture(scope="module")
def undisturbed(ranks: Callable[[int], dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Weights after all steps of a run without losses."""
    return as_plain(ranks(2)["undisturbed"])["model"]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """True if both are equal bit by bit."""
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize(
    "signals",
    [
        pytest.param([SIGKILL], id="killed"),
        pytest.param([SIGKILL, SIGSTOP], id="killed, then stopped", marks=pytest.mark.slow),
    ],
)
def test_a_run_survives_losses(signals: list[Signals], tmp_path: Path, undisturbed: dict[str, torch.Tensor]) -> None:
    """A rank is lost, then another; the run names the cause, starts again, and ends with the same weights."""
    with Killer(signals, tmp_path, seed=1) as killer:
        saving = Saving(str(tmp_path), every=3)
        report = run(lasting_plan(2), unhurried, steps=STEPS, warmup=0, timeout=TIMEOUT, saving=saving, restarts=2)
    assert killer.sent == signals
    assert len(report.restarts) == len(signals)
    assert all(NAMED[number] in said for number, said in zip(signals, report.restarts, strict=True))
    assert report.first > 0
    assert as_plain(tmp_path)["step"] == STEPS
    assert equal(as_plain(tmp_path)["model"], undisturbed)
    with pytest.raises(InputError, match=r"has checkpoints of an earlier run.*--resume"):
        run(lasting_plan(2), unhurried, steps=STEPS, saving=Saving(str(tmp_path)))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_kill_ends_the_run_in_time(tmp_path: Path, undisturbed: dict[str, torch.Tensor]) -> None:
    """At 50 random moments, start-up included: an end in time, the cause named, at last the same weights."""
    generator = random.Random(7)
    kills = completed = 0
    while kills < KILLS:
        how = generator.choice([SIGKILL, SIGSTOP])
        folder = tmp_path / str(completed)
        at_once = generator.random() < 0.4
        with Killer([how], folder, generator.randrange(2**32), at_once) as killer:
            said = attempt(folder)
        if said is None:
            assert equal(as_plain(folder)["model"], undisturbed)
            completed += 1
        else:
            assert NAMED[how] in said
            assert time.monotonic() - killer.sent_at < TIMEOUT + START_UP
        kills += len(killer.sent)
    assert attempt(tmp_path / str(completed)) is None
    assert equal(as_plain(tmp_path / str(completed))["model"], undisturbed)


def attempt(folder: Path) -> str | None:
    """Start or resume a run; return the error that ended it, or None if it was completed."""
    saving = Saving(str(folder), every=3, resume=True)
    try:
        seed = 9 if whole(folder) else 0  # a checkpoint has its own
        run(lasting_plan(2), unhurried, steps=STEPS, warmup=0, timeout=TIMEOUT, saving=saving, seed=seed)
    except RunError as error:
        return str(error)
    return None
