"""torchgpipe's block partition, including cases without any move."""

from itertools import pairwise

import numpy as np
import pytest

from helpers.chains import make_chain
from pipeplan.baselines.partitioners import PARTITIONERS, NotApplicable
from pipeplan.baselines.partitioners.gpipe import block_partition


def counts(weights: list[int], blocks: int) -> list[int]:
    return [b - a for a, b in pairwise(block_partition(np.array(weights), blocks))]


@pytest.mark.parametrize(
    ("weights", "blocks", "expected"),
    [
        ([5] * 10, 4, [2, 2, 2, 4]),
        ([3] * 24, 16, [1] * 15 + [9]),
        ([100] * 9 + [101], 4, [2, 2, 2, 4]),
        ([0, 0, 0, 0, 9, 9], 2, [5, 1]),
        ([4, 1, 1, 1, 1, 4], 3, [2, 2, 2]),
    ],
)
def test_block_partition(weights: list[int], blocks: int, expected: list[int]) -> None:
    """Layers are weighed less the smallest one, and moved until the blocks differ by at most the largest layer."""
    assert counts(weights, blocks) == expected


def test_blocks_differ_by_at_most_the_largest_layer() -> None:
    """The stopping rule holds for the result, on the weights less their minimum."""
    weights = [7, 1, 9, 3, 3, 12, 5, 2, 8, 4, 4, 6]
    edges = block_partition(np.array(weights), 4)
    sums = [sum(w - 1 for w in weights[a:b]) for a, b in pairwise(edges)]
    assert max(sums) <= min(sums) + 12 - 1


def test_times_below_a_microsecond_do_not_count() -> None:
    """Times are whole microseconds, as torchgpipe takes them: 999 ns are none."""
    slow_end = make_chain([999] * 4 + [9_000, 9_000], devices=2)
    assert PARTITIONERS["torchgpipe"].balance(slow_end, 4) == (0, 5, 6)


@pytest.mark.parametrize(
    ("weights", "blocks", "why"),
    [([1, 1, 1, 50, 9, 1, 50], 5, "overlap"), ([0, 0, 0, 0, 0, 1, 0, 9, 0], 5, "does not end")],
)
def test_where_the_original_breaks(weights: list[int], blocks: int, why: str) -> None:
    """If the released procedure makes blocks overlap or never ends, there is no partition; the text names the case."""
    with pytest.raises(NotApplicable, match=why):
        block_partition(np.array(weights), blocks)


def test_fewer_layers_than_stages() -> None:
    """The original refuses them."""
    with pytest.raises(NotApplicable, match="2 layers, 3 stages"):
        PARTITIONERS["torchgpipe"].balance(make_chain([1, 1], devices=3), 4)
