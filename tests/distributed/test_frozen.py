"""Frozen weights on several ranks: adapters and encoders train as in one process, under every level of ZeRO."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.distributed import frozen_workers
from helpers.distributed.together import Job
from helpers.trained import EXACT, assert_equal_training

ROUNDING = 1e-11
"""Accepted difference between runs that add the same numbers in another order, in float64."""


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of these tests on this number of ranks."""
    found: dict[str, Job] = {"frozen": (frozen_workers.trained, ())} if world in frozen_workers.CASES else {}
    moved: dict[str, Job] = {"frozen moved": (frozen_workers.moved_on, (str(folder / "frozen"),))}
    return found | (moved if world in frozen_workers.LAYOUTS else {})


@pytest.mark.parametrize(
    ("world", "name"), [(world, name) for world, cases in frozen_workers.CASES.items() for name in cases]
)
def test_training_around_frozen_weights_equals_plain_torch(
    ranks: Callable[[int], dict[str, Any]], world: int, name: str
) -> None:
    """Losses, norms and weights after several steps are the unsplit model's, in float64; frozen ones stay."""
    ours, theirs, apart = ranks(world)["frozen"][name]
    assert_equal_training(ours, theirs, apart)
    assert ours.evaluated == pytest.approx(theirs.evaluated, rel=EXACT)


@pytest.mark.parametrize("name", frozen_workers.LOW)
def test_mixed_precision_around_frozen_weights_equals_plain_torch(
    ranks: Callable[[int], dict[str, Any]], name: str
) -> None:
    """In bf16 and fp16 the same operations round the same."""
    ours, theirs, apart = ranks(2)["frozen"][name]
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-6)
    assert ours.scales == theirs.scales
    assert apart < 1e-6


@pytest.mark.parametrize("world", frozen_workers.LAYOUTS)
def test_checkpoints_with_frozen_weights_go_on_under_other_plans(
    ranks: Callable[[int], dict[str, Any]], world: int
) -> None:
    """They are saved and loaded whole or in shards, wherever their layers lie."""
    found = ranks(world)["frozen moved"]
    assert len(found) == len(frozen_workers.LAYOUTS[world])
    assert not {case: apart for case, apart in found.items() if not apart < ROUNDING}
