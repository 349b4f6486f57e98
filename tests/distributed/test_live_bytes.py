"""Buffers of sharded stages: bytes of real tensors, compared with what the planner counts for each layer."""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.distributed import live_bytes
from helpers.distributed.live_bytes import Layers
from helpers.distributed.together import Job
from helpers.happening import happens
from pipeplan.costs.kept import AT_ONCE
from pipeplan.costs.sharded import Units

SPACE, SMALL = 500_000, 1_000
"""Bytes that each layer needs while it computes, and those of activations, which are counted for none."""
STAGES: dict[str, tuple[Layers, Sequence[tuple[int, ...]]]] = {
    "one between": ([(40_000, 0), (0, SPACE), (4_000, 0)], ()),
    "before and behind all": ([(0, SPACE), (40_000, 0), (4_000, 0), (0, SPACE)], ()),
    "several in a row": ([(8_000, SPACE), (0, SPACE), (0, SPACE), (64_000, SPACE), (0, SPACE)], ()),
    "shared weights": (
        [(8_000, SPACE), (40_000, 0), (4_000, SPACE), (0, SPACE), (0, SPACE), (16_000, SPACE)],
        [(1, 3)],
    ),
    "frozen": (
        [(4_000, SPACE, 400_000), (8_000, SPACE, 96_000), (0, SPACE, 320_000), (0, SPACE, 0), (16_000, SPACE, 0)],
        (),
    ),
}
CASES = [*product((2, 3), STAGES)]


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Both levels of each stage on two ranks, and of a mesh on four processes."""
    del folder
    cases = [(level, *STAGES[name]) for level, name in CASES]
    alone, on_a_mesh = (live_bytes.of_cases, (cases,)), (live_bytes.on_a_mesh, ())
    return {2: {"live bytes": alone}, 4: {"live bytes on a mesh": on_a_mesh}}.get(world, {})


@pytest.mark.parametrize("level", [2, 3])
def test_buffers_of_meshes_are_those_of_their_parts(ranks: Callable[[int], dict[str, Any]], level: int) -> None:
    """What replicas gather of a device's half of each weight, and twice the weight that a team gathers from halves."""
    whole = live_bytes.WIDE**2 * 4
    halves = Units.of(np.array([whole // 2] * 4, np.int64), ())
    expected = halves.with_buffers(np.array([2 * whole] * 4), 2, 4 * AT_ONCE, level == 3)
    assert ranks(4)["live bytes on a mesh"][level] == pytest.approx(max(expected), abs=4 * SMALL)


@pytest.mark.happens(0.2)
@pytest.mark.parametrize(("level", "name"), CASES)
def test_buffers_beside_a_layer_are_what_is_counted(
    ranks: Callable[[int], dict[str, Any]], level: int, name: str
) -> None:
    """A layer has its neighbours' buffers while it computes, whether it has parameters or not."""
    layers, ties = STAGES[name]
    rows = [(*layer, 0)[:3] for layer in layers]
    sizes, spaces, frozen = (np.array(row, np.int64) for row in zip(*rows, strict=True))
    gathered = Units.of(sizes + frozen * (level == 3), tuple(ties))
    expected = Units.of(sizes, tuple(ties)).with_buffers(spaces, 2, 4 * AT_ONCE, level == 3, gathered)
    traced = ranks(2)["live bytes"][CASES.index((level, name))]
    for i, ((forward, backward), count) in enumerate(zip(traced, expected, strict=True)):
        if happens(spaces[i]):  # where it decides, and not the sum of the layer's gradients
            forward += int(sizes[i + 1 :].sum()) * (level == 2)  # still to be gathered
            assert max(forward, backward) == pytest.approx(count, abs=SMALL)
