"""Training with gradients that are one batch late, compared with delayed updates of the unsplit model in one process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.distributed import delay_workers
from helpers.distributed.delay_workers import LOW, cases
from helpers.distributed.together import Job
from helpers.quick import QUICK

EXACT = 1e-10
WORLDS = (2,) if QUICK else (2, 4)


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of these tests on this number of ranks."""
    return {"delayed": (delay_workers.everything, ())} if world in WORLDS else {}


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
