"""Levels 2 and 3 of ZeRO on several stages of real processes, compared with the unsplit model in a plain torch loop."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.distributed import training_workers
from helpers.distributed.together import Job
from helpers.distributed.training_workers import SHARDED_STAGES, SHARDED_STAGES_LOW
from helpers.trained import EXACT, assert_equal_training


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of these tests on this number of ranks."""
    found = {"sharded stages": (training_workers.sharded_stages, ())} if world in SHARDED_STAGES else {}
    return found | ({"sharded outputs": (training_workers.sharded_outputs, ())} if world == 3 else {})


@pytest.mark.parametrize(
    ("world", "name"), [(world, name) for world, cases in SHARDED_STAGES.items() for name in cases]
)
def test_training_in_shards_equals_plain_torch(ranks: Callable[[int], dict[str, Any]], world: int, name: str) -> None:
    """Losses, norms and weights after several steps are the unsplit model's, in float64, for stages of any width."""
    ours, theirs, apart = ranks(world)["sharded stages"][name]
    assert_equal_training(ours, theirs, apart)
    assert ours.evaluated == pytest.approx(theirs.evaluated, rel=EXACT)


@pytest.mark.parametrize("name", SHARDED_STAGES_LOW)
def test_mixed_precision_in_shards_equals_plain_torch(ranks: Callable[[int], dict[str, Any]], name: str) -> None:
    """In bf16 and fp16 the same operations round the same, and fp16 leaves out the same updates on all stages."""
    ours, theirs, apart = ranks(4)["sharded stages"][name]
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-6)
    assert ours.norms == pytest.approx(theirs.norms, rel=1e-5)
    assert ours.scales == theirs.scales
    assert apart < 1e-6


@pytest.mark.slow
def test_gradients_and_outputs_are_the_unsplit_models(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Verification passes with dropout and recomputed layers, and predictions are those of level 0."""
    error, apart, _ = ranks(3)["sharded outputs"]
    assert error < EXACT
    assert apart < EXACT


@pytest.mark.slow
def test_a_stage_with_replicas_is_sharded(ranks: Callable[[int], dict[str, Any]]) -> None:
    """A rank alone on its stage holds all numbers; those of two replicas are divided up to rounding."""
    alone, *others = ranks(3)["sharded outputs"][-1]
    assert alone == sum(others) == 1
    assert others == pytest.approx([0.5, 0.5], abs=0.05)
