"""What ``--verify`` compares: the user's own module, with state and random numbers, and losses that are no mean."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers import stateful_models
from helpers.distributed import verify_workers
from helpers.distributed.together import Job
from pipeplan_executor.train.verdict import Verdict

EXACT = 1e-10


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of these tests on this number of ranks."""
    names = ("stateful", "reversed_gradient") if world == 2 else ()
    return {name: (getattr(verify_workers, name), ()) for name in names}


@pytest.fixture(scope="module")
def found(ranks: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """Results of two ranks."""
    return ranks(2)


@pytest.mark.parametrize("name", [build.__name__ for build in stateful_models.RIGHT])
def test_state_and_random_numbers_raise_no_alarm(found: dict[str, Any], name: str) -> None:
    """Norms, counters, dropout, noise and masks: equal in stages and in replicas, recomputed layers among them."""
    for case in (name, f"{name} in replicas"):
        verdict: Verdict = found["stateful"][case]
        assert verdict.holds, str(verdict)
        assert verdict.error <= EXACT
        assert ("the module itself" in str(verdict)) == ("masked" not in name)


def test_16_bits_inside_raise_no_alarm(found: dict[str, Any]) -> None:
    """The whole batch at once rounds otherwise than its micro-batches, which are compared."""
    verdict: Verdict = found["stateful"]["lowered"]
    assert verdict.holds, str(verdict)
    assert "float32" in str(verdict)
    assert "micro-batch by micro-batch" in str(verdict)


def test_a_loss_may_draw_random_numbers(found: dict[str, Any]) -> None:
    """It draws the same ones here and there, and the verdict says so."""
    assert "the same random numbers in each loss" in str(found["stateful"]["masking"])


def test_it_says_what_was_compared_with_dropout(found: dict[str, Any]) -> None:
    """A chain's layers are the module's own; a captured graph draws in its own order."""
    assert "without dropout and with it" in str(found["stateful"]["counting"])
    assert "with dropout the captured layers one after the other, not the module" in str(found["stateful"]["normed"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("contrastive", "no mean over samples.*contrastive"),
        ("in_batch", "outputs for a sample depend on the others"),
        ("masked", "no mean over samples.*Workload.weight"),
    ],
)
def test_a_loss_that_is_no_mean_is_said(found: dict[str, Any], name: str, said: str) -> None:
    """Though the plan computes its micro-batches exactly, it trains something else."""
    verdict: Verdict = found["stateful"][name]
    assert not verdict.holds
    assert verdict.error <= EXACT
    assert re.search(said, str(verdict))


def test_a_lost_gradient_is_found_under_dropout(found: dict[str, Any]) -> None:
    """The reference is the module, so a captured graph that lost a gradient differs, with dropout as without."""
    verdict: Verdict = found["reversed_gradient"]
    assert not verdict.holds
    assert verdict.error > 0.1
