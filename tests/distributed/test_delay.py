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
from helpers.distributed.together import Job, done
from helpers.quick import QUICK
from pipeplan_executor import run
from pipeplan_executor.calibrate.engine import engine_work
from pipeplan_executor.checkpoint import as_plain
from pipeplan_executor.train.saving import Saving

EXACT = 1e-10
LONG = 1000
"""Steps of a long run."""
WORLDS = (2,) if QUICK else (2, 4)


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of these tests on this number of ranks."""
    return {"delayed": (delay_workers.everything, ())} if world in WORLDS else {}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of longer jobs on two ranks."""
    folder = tmp_path_factory.mktemp("delayed")
    return done(
        2,
        {
            "mixed": (delay_workers.mixed, ()),
            "resumed": (delay_workers.resumed, (str(folder / "saved"),)),
            "verified": (delay_workers.verified, ()),
            "long": (delay_workers.long_runs, (LONG,)),
            "undisturbed": (undisturbed_run, (str(folder / "lasting"), 1)),
        },
    )


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


@pytest.mark.slow
@pytest.mark.parametrize("name", LOW)
def test_mixed_precision(found: dict[str, Any], name: str) -> None:
    """A batch keeps the loss scale that it began with, and a gradient that overflowed is left out."""
    ours, theirs, apart = found["mixed"][name]
    assert ours.losses[1:] == pytest.approx(theirs.losses, rel=1e-6)
    assert apart < 1e-6


@pytest.mark.slow
def test_a_checkpoint_is_where_training_goes_on(found: dict[str, Any]) -> None:
    """Saving changes nothing, and a resumed run ends with the same weights, bit by bit; under another plan, to 1e-10.

    A plan without delay begins with the newest weights, and one with delay goes on from a checkpoint without it.
    """
    apart = found["resumed"]
    assert apart["saved"] == apart["resumed"] == apart["newest"] == apart["not delayed"] == 0
    assert apart["elsewhere"] < EXACT


@pytest.mark.slow
def test_verification_is_with_delayed_updates(found: dict[str, Any]) -> None:
    """Losses and weights of several steps equal those of one process; the verdict says with what it compared."""
    for error, said in found["verified"]:
        assert error < EXACT
        assert "losses and weights equal" in said and "4 updates in one process" in said


@pytest.mark.slow
def test_a_long_run_holds_no_more_than_a_short_one(found: dict[str, Any]) -> None:
    """A thousand steps leave as many live bytes as ten, but for some small objects: not one tensor of a step more."""
    for short, long in found["long"]:
        assert long - short < 20_000


@pytest.mark.slow
def test_a_run_that_is_killed_between_two_batches_goes_on_exactly(tmp_path: Path, found: dict[str, Any]) -> None:
    """Killed with a batch in flight, it resumes from its last checkpoint and ends with the same weights, bit by bit."""
    undisturbed = as_plain(found["undisturbed"])["model"]
    with Killer([SIGKILL], tmp_path, seed=2) as killer:
        saving = Saving(str(tmp_path), every=7)
        report = run(lasting_plan(2, 1), unhurried, steps=STEPS, warmup=0, timeout=12.0, saving=saving, restarts=1)
    assert killer.sent == [SIGKILL] and report.first > 0
    assert len(report.losses) == STEPS - report.first
    assert engine_work(lasting_plan(2, 1), report) is None  # no step is by itself
    model = as_plain(tmp_path)["model"]
    assert model.keys() == undisturbed.keys()
    assert all(torch.equal(value, undisturbed[name]) for name, value in model.items())
