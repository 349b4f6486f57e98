"""GPipe's rounding of cumulative FLOPs."""

import pytest

from helpers.chains import make_chain
from pipeplan.baselines.partitioners import PARTITIONERS, NotApplicable


@pytest.mark.parametrize(
    ("flops", "stages", "expected"),
    [
        ([1] * 12, 4, (0, 2, 5, 8, 12)),
        ([3, 1, 1, 1], 2, (0, 0, 4)),
        ([1, 1, 1, 3], 2, (0, 2, 4)),
        ([0, 0, 5, 0], 2, (0, 2, 4)),
        ([7], 3, (0, 0, 0, 1)),
    ],
)
def test_layers_on_a_boundary_go_behind_it(flops: list[int], stages: int, expected: tuple[int, ...]) -> None:
    """A layer whose cumulative share reaches a boundary belongs to the stage behind it, and stages can be empty."""
    chain = make_chain([1] * len(flops), devices=stages, forward_flops=flops)
    assert PARTITIONERS["gpipe"].balance(chain, 4) == expected


def test_shares_are_exact_at_any_size() -> None:
    """Shares that a floating-point quotient would round over a boundary are compared as integers."""
    big = 2**61 // 12
    chain = make_chain([1] * 12, devices=4, forward_flops=[big] * 12)
    assert PARTITIONERS["gpipe"].balance(chain, 4) == (0, 2, 5, 8, 12)
    less = make_chain([1] * 12, devices=4, forward_flops=[big] * 2 + [big - 1] + [big] * 9)
    assert PARTITIONERS["gpipe"].balance(less, 4) == (0, 3, 6, 9, 12)


def test_no_flops_no_shares() -> None:
    """A model without FLOPs has no shares."""
    with pytest.raises(NotApplicable, match="FLOPs"):
        PARTITIONERS["gpipe"].balance(make_chain([0, 0], devices=2), 4)
