"""Ranks with several stages on real processes, compared with the unsplit model in a plain torch loop."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.distributed import chunk_workers
from helpers.distributed.checkpointing import Layout, moved
from helpers.distributed.chunk_workers import CHUNKED
from helpers.distributed.together import Job
from helpers.trained import EXACT, assert_equal_training
from pipeplan_executor import launch


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of these tests on this number of ranks."""
    found: dict[str, Job] = {"chunks": (chunk_workers.chunked, ())} if world in CHUNKED else {}
    layouts = (Layout(family="zb-v"), Layout((1, 1)))
    saved: dict[str, Job] = {"common weights": (moved, (str(folder / "v"), "tied", "adam", True, False, layouts))}
    return found | saved | {"turns": (chunk_workers.events_of_turns, ())} if world == 2 else found


@pytest.mark.parametrize(("world", "name"), [(world, name) for world, cases in CHUNKED.items() for name in cases])
def test_training_of_several_stages_on_a_rank_equals_plain_torch(
    ranks: Callable[[int], dict[str, Any]], world: int, name: str
) -> None:
    """Losses, norms and weights after several steps are the unsplit model's, in float64, tied weights included."""
    ours, theirs, apart = ranks(world)["chunks"][name]
    assert_equal_training(ours, theirs, apart)


def test_sums_of_stages_leave_in_turn_beside_backwards(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Replicas with two and one micro-batches begin the same sums, each stage's within its own last backward."""
    later, earlier = ["backward 1", "leave 1 24", "leave 1 0", "end"], ["backward 0", "leave 0 0", "end"]
    for rank, events in enumerate(ranks(2)["turns"]):
        before = ["backward 1", "end", "backward 0", "end"] * (1 - rank)
        assert events == [*before, *later, *earlier, "leave 0 0", "leave 1 0"]  # nothing is left to R


def test_checkpoints_hold_common_weights_once(ranks: Callable[[int], dict[str, Any]]) -> None:
    """A run with both ends of a model on one rank goes on with them on two, and back, as if it had not changed."""
    found = ranks(2)["common weights"]
    assert len(found) == 2
    assert all(apart < EXACT for apart in found.values()), found


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("world", "count"), [(2, 60), (3, 40), (4, 100)])
def test_random_plans_of_several_stages_on_a_rank_are_exact(world: int, count: int) -> None:
    """Two hundred plans: families, copies, cuts, ZeRO, recomputation, buckets and ties of any kind, in float64."""
    found = launch(chunk_workers.random_chunked, world, count, world, timeout=300)
    assert len(found) == count
    wrong = {name: errors for name, errors in found.items() if not max(errors) < EXACT}
    assert not wrong, wrong
