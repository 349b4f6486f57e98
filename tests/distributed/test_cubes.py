"""3-D linear maps on eight processes: equal to the unsplit ones, and what they send."""

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest

from helpers.distributed import cube_workers
from helpers.distributed.cube_workers import BATCH, CUBES, INPUTS, OUTPUTS, TOKENS, Sent
from helpers.distributed.together import Job

pytestmark = pytest.mark.slow  # eight processes

EXACT = 1e-10
ITEM = 8
X, W, Y = BATCH * TOKENS * INPUTS, INPUTS * OUTPUTS, BATCH * TOKENS * OUTPUTS


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of cubes of eight."""
    if world != 8:
        return {}
    return {
        "cube single": (cube_workers.single, (False,)),
        "cube biased": (cube_workers.single, (True,)),
        "cube block": (cube_workers.block, ()),
        "cube chained": (cube_workers.chained, ()),
        "cube refused": (cube_workers.refused, ()),
    }


@pytest.fixture(scope="module")
def found(ranks: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """Results of eight processes."""
    return ranks(8)


def _received(size: int, axis: int) -> int:
    """Bytes that each process receives where parts of a tensor are gathered, or sums scattered, along an axis."""
    return ITEM * size // 8 * (axis - 1)


def test_linear_maps_are_exact(found: dict[str, Any]) -> None:
    """Output and gradients of input, weight and bias equal the unsplit map's on every cube."""
    for name in ("cube single", "cube biased"):
        assert len(found[name]) == 2 * len(CUBES)
        for case, (error, _, _) in found[name].items():
            assert error < EXACT, (name, case)


@pytest.mark.parametrize("cube", CUBES)
@pytest.mark.parametrize("kept", [True, False])
def test_a_linear_map_sends_what_is_known(found: dict[str, Any], cube: tuple[int, int, int], kept: bool) -> None:
    """Two gathers and a scatter forward; a gather, or three, and two scatters backward; none along axes of 1."""
    w, i, o = cube
    _, forward, backward = found["cube single"][f"{'x'.join(map(str, cube))} {'kept' if kept else 'again'}"]
    once = _received(X, i), _received(W, w), _received(Y, o)
    again = 0 if kept else once[0] + once[1]
    assert forward == Sent(_counts(gather=(w, i), scatter=(o,)), sum(once))
    gathers = (o,) if kept else (o, w, i)
    assert backward == Sent(_counts(gather=gathers, scatter=(i, w)), sum(once) + again)


def _counts(**axes: tuple[int, ...]) -> dict[str, int]:
    """Collectives by kind along axes of more than one process."""
    counts = {kind: sum(axis > 1 for axis in row) for kind, row in axes.items()}
    return {kind: count for kind, count in counts.items() if count}


def test_a_bias_is_gathered_with_its_weight(found: dict[str, Any]) -> None:
    """It adds a gather along the weight axis, and a scatter of its gradient."""
    for case, (_, forward, backward) in found["cube biased"].items():
        w, i, _ = map(int, case.partition(" ")[0].split("x"))
        _, without, back = found["cube single"][case]
        more = ITEM * OUTPUTS // (i * w) * (w - 1)
        assert (forward.bytes - without.bytes, backward.bytes - back.bytes) == (more, more)
        assert forward.counts.get("gather", 0) - without.counts.get("gather", 0) == (w > 1)
        assert backward.counts.get("scatter", 0) - back.counts.get("scatter", 0) == (w > 1)


def test_two_linear_maps_lie_behind_one_another(found: dict[str, Any]) -> None:
    """Nothing is laid out anew: 4 gathers and 2 scatters forward, 2 and 4 backward; less is kept if gathered again."""
    error, forward, backward, (parts, gathered) = found["cube chained"]
    assert error < EXACT
    assert forward.counts == {"gather": 4, "scatter": 2}
    assert backward.counts == {"gather": 2, "scatter": 4}
    x, inner, weight = BATCH * INPUTS, BATCH * 32, INPUTS * 32
    assert parts == ITEM * (x + inner + 2 * weight) // 8  # the function keeps its output, which is the second's input
    assert gathered == ITEM * (x + inner + 2 * weight) // 4 + ITEM * inner // 8


def test_a_block_of_a_transformer_is_exact(found: dict[str, Any]) -> None:
    """So is attention over the heads of each process, layer norm over split features, and residual sums.

    Norms send a gather of their rows' means and deviations forward, and three sums backward on a cube of three axes.
    """
    for case, (error, _, _) in found["cube block"].items():
        assert error < EXACT, case
    _, forward, backward = found["cube block"]["2x2x2"]
    assert forward.counts == {"gather": 6 * 3 + 2, "scatter": 6}
    assert backward.counts == {"gather": 2 * 1 + 4 * 3, "scatter": 6 * 3, "sum": 2 * 3}


def test_what_does_not_fit_is_refused(found: dict[str, Any]) -> None:
    """Features of input and weight that differ, rows and dimensions that axes do not divide; autocast is respected."""
    features, rows, parts, made, gradient = found["cube refused"]
    assert "inputs of 3 features meet weights of shape (2, 4)" in features
    assert rows == "1 rows cannot be scattered along an axis of 4 processes"
    assert parts == "a dimension of 6 cannot have equal parts along axes of 2 x 2 processes"
    assert (made, gradient) == ("torch.bfloat16", "torch.float32")


def test_cubes_have_eight_processes() -> None:
    """All cubes of the tests fill the world."""
    assert {prod(cube) for cube in CUBES} == {8}
