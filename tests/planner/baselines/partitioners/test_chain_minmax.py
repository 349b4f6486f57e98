"""Exact min-max dynamic programmes on a chain: the textbook's, and PipeDream's with links."""

import pytest

from helpers.chains import make_chain
from pipeplan.baselines.partitioners import PARTITIONERS, NotApplicable
from pipeplan.baselines.partitioners.partitioner import stage_loads

minmax, pipedream = PARTITIONERS["chain-minmax"], PARTITIONERS["pipedream"]


def test_forward_and_backward_both_count() -> None:
    """The cut follows the sum of both times."""
    chain = make_chain([1, 1, 1, 1], [1, 1, 1, 9], devices=2)
    assert minmax.balance(chain, 4) == (0, 3, 4)


def test_a_faster_device_gets_more() -> None:
    """On devices of speed 1 and 3, a quarter of twelve equal layers goes to the slow one, whatever its place."""
    assert minmax.balance(make_chain([30] * 12, devices=[1, 3]), 4) == (0, 3, 12)
    assert minmax.balance(make_chain([30] * 12, devices=[3, 1]), 4) == (0, 9, 12)


def test_a_hopeless_device_stays_empty() -> None:
    """A device on which any layer takes longer than everything elsewhere gets none; otherwise no stage is empty."""
    chain = make_chain([[5, 5, 5], [99, 99, 99], [5, 5, 5]], devices=3)
    boundaries = minmax.balance(chain, 4)
    assert boundaries[1] == boundaries[2]
    assert max(stage_loads(chain, boundaries)) == 10
    assert minmax.balance(make_chain([4, 1, 1], devices=3), 4) == (0, 1, 2, 3)


def test_pipedream_avoids_a_dear_cut() -> None:
    """The balanced cut would keep the link busy for 2 · 6 > 10 ns, so the optimum moves to the cheap cut beside it."""
    free = make_chain([4, 4, 4, 4], devices=2, boundary=[1, 6, 1], bandwidth=None)
    slow = make_chain([4, 4, 4, 4], devices=2, boundary=[1, 7, 1], bandwidth=10**9)
    assert pipedream.balance(free, 4) == minmax.balance(free, 4) == (0, 2, 4)
    assert pipedream.balance(slow, 4) == (0, 1, 4)
    assert minmax.balance(slow, 4) == (0, 2, 4)


def test_pipedream_knows_which_link_a_cut_lies_on() -> None:
    """With one slow link of two, the large tensor crosses the fast one."""
    chain = make_chain([6, 6, 6, 6], devices=3, boundary=[9, 9, 1], bandwidth=[10**10, 10**9])
    assert pipedream.balance(chain, 4)[2] == 3


def test_pipedream_counts_both_directions() -> None:
    """A cut costs its send time twice: 2 · 5 equals the balanced load of 10 and is taken, 2 · 6 exceeds it by 2."""
    assert pipedream.balance(make_chain([10, 4, 6], devices=2, boundary=[5, 0], bandwidth=10**9), 4) == (0, 1, 3)
    chain = make_chain([10, 1, 10], devices=2, boundary=[6, 6], bandwidth=10**9)
    boundaries = pipedream.balance(chain, 4)
    loads = [*stage_loads(chain, boundaries), 2 * int(chain.send[0, boundaries[1] - 1])]
    assert max(loads) == 12


def test_pipedream_fills_every_stage() -> None:
    """Fewer layers than stages are refused."""
    with pytest.raises(NotApplicable, match="1 layers, 2 stages"):
        pipedream.balance(make_chain([1], devices=2), 4)
