"""The worked examples of docs/balancers.md."""

import pytest

from helpers.chains import make_chain
from pipeplan.baselines.partitioners import PARTITIONERS
from pipeplan.baselines.partitioners.partitioner import stage_loads

FAT_HEAD = [10] * 8 + [40]


@pytest.mark.parametrize(
    ("name", "times", "loads", "optimum"),
    [
        ("uniform-deepspeed", FAT_HEAD, [30, 30, 60], [40, 40, 40]),
        ("uniform-torchtitan", FAT_HEAD, [30, 40, 50], [40, 40, 40]),
        ("deepspeed-time", [1, 6, 3, 3], [7, 3, 3], [1, 6, 6]),
        ("deepspeed-time", [2, 2, 4, 1, 5], [4, 4, 1, 5], [2, 2, 5, 5]),
        ("gpipe", [3, 1, 1, 1], [0, 6], [3, 3]),
        ("torchgpipe", [5000] * 10, [10000, 10000, 10000, 20000], [10000, 10000, 15000, 15000]),
        ("bapipe", [2, 1, 3, 1], [2, 1, 4], [3, 3, 1]),
    ],
)
def test_loads(name: str, times: list[int], loads: list[int], optimum: list[int]) -> None:
    """The balancer has the loads that the page gives, and the loads it could have had are no larger at the worst."""
    chain = make_chain(times, devices=len(loads))
    assert stage_loads(chain, PARTITIONERS[name].balance(chain, 8)) == loads
    best = stage_loads(chain, PARTITIONERS["chain-minmax"].balance(chain, 8))
    assert max(best) == max(optimum) <= max(loads)


def test_chain_minmax_at_a_dear_cut() -> None:
    """Four layers of 4 ns with 7 ns of sending in the middle: the min-max cut keeps its link busy for 14 ns."""
    chain = make_chain([4] * 4, devices=2, send=[[1, 7, 1]])
    assert PARTITIONERS["chain-minmax"].balance(chain, 8) == (0, 2, 4)
    assert stage_loads(chain, PARTITIONERS["pipedream"].balance(chain, 8)) == [4, 12]
