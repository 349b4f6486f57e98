"""Gradients that leave in buckets on real processes, compared with the unsplit model in a plain torch loop."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.distributed import training_workers
from helpers.distributed.together import Job
from helpers.distributed.training_workers import BUCKETED, BUCKETED_LOW
from helpers.trained import EXACT, assert_equal_training


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of these tests on this number of ranks."""
    found = {"buckets": (training_workers.bucketed, ())} if world in BUCKETED else {}
    watched = {
        "buckets' events": (training_workers.events_of_a_step, ()),
        "read alone": (training_workers.read_alone, ()),
    }
    return found | (watched if world == 2 else {})


@pytest.mark.parametrize(("world", "name"), [(world, name) for world, cases in BUCKETED.items() for name in cases])
def test_training_with_buckets_equals_plain_torch(
    ranks: Callable[[int], dict[str, Any]], world: int, name: str
) -> None:
    """Losses, norms and weights after several steps are the unsplit model's, in float64."""
    ours, theirs, apart = ranks(world)["buckets"][name]
    assert_equal_training(ours, theirs, apart)


@pytest.mark.parametrize("name", BUCKETED_LOW)
def test_mixed_precision_with_buckets_equals_plain_torch(ranks: Callable[[int], dict[str, Any]], name: str) -> None:
    """In bf16 and fp16 the same operations round the same, and fp16 leaves out the same updates."""
    ours, theirs, apart = ranks(2)["buckets"][name]
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-6)
    assert ours.scales == theirs.scales
    assert apart < 1e-6


def test_buckets_leave_before_the_last_backward_ends(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Each replica begins the same sums in the same order within its own last backward; R finds them begun.

    The second of four layers has no parameters, so its bucket goes with the third layer's.
    """
    leaves = ["leave 4", "leave 2", "leave 2", "leave 0"]
    for rank, events in enumerate(ranks(2)["buckets' events"]):
        earlier = ["backward", "end"] * (1 - rank)
        assert events == [*earlier, "backward", *leaves, "end", "reduce", "leave 0"]


def test_parameters_are_gathered_behind_the_step(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Steps end before gathers begin, which are of the runs of layers that any bucket separates, in forward order.

    The parameters that one rank then reads, without the other one, are whole.
    """
    awaited, error = ranks(2)["read alone"]
    assert awaited == [[0, 2, 3, 4]] * 2
    assert error < EXACT
