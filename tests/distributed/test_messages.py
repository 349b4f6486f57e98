"""Sums of shares at their owners, by messages between replicas."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.distributed import messages
from helpers.distributed.together import Job

LENGTHS = {
    2: {"equal": (8, 8), "unlike": (3, 10), "one owner": (0, 7), "none": (0, 0)},
    4: {"equal": (4, 4, 4, 4), "unlike": (9, 0, 5, 2), "one owner": (0, 0, 6, 0)},
}


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of sums on two and four ranks, in segments of four numbers."""
    del folder
    return {"messages": (messages.worst_errors, (LENGTHS[world], 4))} if world in LENGTHS else {}


@pytest.mark.parametrize("world", LENGTHS)
def test_every_owner_has_the_sum_of_its_share(ranks: Callable[[int], dict[str, Any]], world: int) -> None:
    """Shares of equal and unlike lengths, longer than a segment and empty."""
    assert ranks(world)["messages"] == dict.fromkeys(LENGTHS[world], 0.0)
