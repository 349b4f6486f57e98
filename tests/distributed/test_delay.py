"""Training with gradients that are one batch late, beside delayed updates of the unsplit model in one process."""

from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import torch

from helpers.distributed import delay_workers
from helpers.distributed.delay_workers import LOW, cases
from helpers.distributed.lasting import STEPS, Killer, lasting_plan, undisturbed_run, unhurried
from helpers.distributed.together import Job
from helpers.quick import QUICK
from pipeplan_executor import run
from pipeplan_executor.checkpoint import as_plain
from pipeplan_executor.train.saving import Saving

EXACT = 1e-10
LONG = 30 if QUICK else 1000
"""Steps of a long run."""
WORLDS = (2,) if QUICK else (2, 4)


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of these tests on this number of ranks."""
    everything: dict[str, Job] = {"delayed": (delay_workers.everything, ())} if world in WORLDS else {}
    more: dict[str, Job] = {
        "delayed, resumed": (delay_workers.resumed, (str(folder / "delayed"),)),
        "delayed, verified": (delay_workers.verified, ()),
        "delayed, live bytes": (delay_workers.live_bytes, (LONG,)),
        "delayed, undisturbed": (undisturbed_run, (str(folder / "lasting"), 1)),
    }
    return everything | (more if world == 2 else {})


@pytest.mark.parametrize(("world", "name"), [(world, name) for world in WORLDS for name in cases(world)])
def test_training_is_that_of_one_process_with_delayed_updates(
    ranks: Callable[[int], dict[str, Any]], world: int, name: str
) -> None:
    """Each step returns the loss of the batch before; losses and weights are those of the one process, in float64."""
    ours, theirs, apart = ranks(world)["delayed"][name]
    assert ours.losses[0] != ours.losses[0]
    assert ours.losses[1:] == pytest.approx(theirs.losses, rel=EXACT)
    assert ours.evaluated == pytest.approx(theirs.evaluated, rel=EXACT)
    assert apart < EXACT


@pytest.mark.parametrize("name", LOW)
def test_mixed_precision(ranks: Callable[[int], dict[str, Any]], name: str) -> None:
    """A batch keeps the loss scale that it began with, and a gradient that overflowed is left out."""
    ours, theirs, apart = ranks(2)["delayed"][name]
    assert ours.losses[1:] == pytest.approx(theirs.losses, rel=1e-6)
    assert apart < 1e-6


def test_a_checkpoint_is_where_training_goes_on(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Saving changes nothing, and a resumed run ends with the same weights, bit by bit; under another plan, to 1e-10.

    A plan without delay begins with the newest weights, and one with delay goes on from a checkpoint without it.
    """
    found = ranks(2)["delayed, resumed"]
    assert found["saved"] == found["resumed"] == found["newest"] == found["not delayed"] == 0
    assert found["elsewhere"] < EXACT


def test_verification_is_with_delayed_updates(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Losses and weights of several steps equal those of one process; the verdict says with what it compared."""
    for error, said in ranks(2)["delayed, verified"]:
        assert error < EXACT
        assert "losses and weights equal" in said and "4 updates in one process" in said


def test_a_long_run_holds_no_more_than_a_short_one(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Live bytes at their peak in the first ten steps, and in all that follow."""
    for short, long in ranks(2)["delayed, live bytes"]:
        assert 0 < long <= short


@pytest.mark.slow
def test_a_run_that_is_killed_between_two_batches_goes_on_exactly(
    tmp_path: Path, ranks: Callable[[int], dict[str, Any]]
) -> None:
    """Killed with a batch in flight, it resumes from its last checkpoint and ends with the same weights, bit by bit."""
    undisturbed = as_plain(ranks(2)["delayed, undisturbed"])["model"]
    with Killer([SIGKILL], tmp_path, seed=2) as killer:
        saving = Saving(str(tmp_path), every=7)
        report = run(lasting_plan(2, 1), unhurried, steps=STEPS, warmup=0, timeout=12.0, saving=saving, restarts=1)
    assert killer.sent == [SIGKILL] and report.first > 0
    assert len(report.losses) == STEPS - report.first
    found = as_plain(tmp_path)["model"]
    assert found.keys() == undisturbed.keys()
    assert all(torch.equal(value, undisturbed[name]) for name, value in found.items())
