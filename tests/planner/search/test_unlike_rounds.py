"""Rounds of several stages per device that are cut unlike, in proportion."""

from typing import Any

import numpy as np
import pytest

from helpers.instances import BY_HAND, model_of
from pipeplan import load_cluster, load_model
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.folding import Folding, Laid
from pipeplan.core.model import Layer, LayerCost, Model, Profile
from pipeplan.search.result import Result
from pipeplan.solve import solve


def layers(count: int) -> Model:
    """So many like layers in a row."""
    rows = [Layer(f"b{i}", 4, (f"b{i - 1}",) if i else (), kind="block") for i in range(count)]
    cost = LayerCost(10, 20, 10, 10, saved=4, output=1)
    return Model("layers", tuple(rows), (Profile("device", 1, (cost,) * count, BY_HAND),))


def asked(**options: Any) -> Result:
    """The answer for 14 layers and eight samples on two devices, two stages on each."""
    how = {"devices": 2, "batch": 8, "workers": 1, "chunks": 2, "replicas": 1, "unlike_rounds": True}
    return solve(layers(14), **how | options)


@pytest.mark.parametrize("family", ["interleaved", "zb-v", "dualpipe-v"])
def test_devices_of_odd_numbers_of_layers_have_equal_work(family: str) -> None:
    """Seven layers on each device, proved, where rounds cut alike leave eight and six."""
    alike, unlike = asked(schedules=family, unlike_rounds=False), asked(schedules=family)
    assert [len(stage.layers) for stage in alike.plan.stages] in ([4, 3, 4, 3], [3, 4, 4, 3], [4, 3, 3, 4])
    shares = [len(stage.layers) for stage in unlike.plan.stages]
    homes = [stage.devices[0] for stage in unlike.plan.stages]
    assert [sum(n for n, home in zip(shares, homes, strict=True) if home == d) for d in (0, 1)] == [7, 7]
    assert unlike.value < alike.value and alike.gap == unlike.gap == 0
    assert "unlike ones that are cut in proportion" in unlike.searched.rounds
    assert any("--unlike-rounds" in sentence for sentence in alike.searched.not_searched)
    assert not any("--unlike-rounds" in sentence for sentence in unlike.searched.not_searched)


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize(
    ("blocks", "lengths"),
    [(range(1, 9), (4, 3)), (range(9), (3, 3, 2)), (range(0, 15, 2), (10, 4)), (range(9), (2, 6))],
)
def test_all_layers_are_in_one_stage(blocks: range, lengths: tuple[int, ...], turns: bool) -> None:
    """Whatever the cut, stages follow each other, and fold back to it; rounds are cut in proportion."""
    total, rounds = blocks[-1] + 2, len(lengths)
    folding = Folding.of(blocks, total, Laid(rounds, turns, lengths))
    assert folding is not None
    for cut in range(1, folding.layers):
        edges = folding.unfolded((0, cut, folding.layers))
        assert edges[0] == 0 and edges[-1] == total and list(edges) == sorted(edges)
        both = np.array([0, cut]), np.array([cut, folding.layers])
        assert folding.whole(*both).all() == (len({*edges}) == len(edges))
        assert folding.folds(edges)
        first, others = (
            [folding.layers_of(range(a, b), number) for number in range(rounds)] for a, b in zip(*both, strict=True)
        )
        assert sorted(layer for own in (*first, *others) for layer in own) == [*range(total)]
        blocks_only = [[i for i in own if blocks[0] <= i < blocks[-1]] for own in first]
        shares = [len(own) / many for own, many in zip(blocks_only, lengths, strict=True)]
        assert all(abs(share - cut / folding.layers) * many <= 1 for share, many in zip(shares, lengths, strict=True))


UNLIKE = Cluster(
    "unlike",
    {name: DeviceKind(name) for name in ("device", "other")},
    (Node(("device", "other"), Link(10**9, 1)),),
    Link(10**9, 1),
)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"objective": "period"}, "for the objective 'step', not 'period'"),
        ({"chunks": 1}, "ask for some \\(chunks\\), like 2"),
        ({"chunks": (), "batch": 64}, "not searched here; ask for some \\(chunks\\)"),
        ({"cluster": UNLIKE, "devices": None}, "devices of one kind, and unlike has device and other"),
    ],
)
def test_where_rounds_are_not_cut_unlike_it_says_so(options: dict[str, Any], why: str) -> None:
    """Each refusal names what excludes it."""
    with pytest.raises(InputError, match=why):
        asked(**options)


def test_devices_that_wait_for_transfers_have_rounds_cut_alike() -> None:
    """The overlap of the cluster is named."""
    kind = DeviceKind("unit")
    cluster = Cluster("waits", {"unit": kind}, (Node(("unit",) * 2, Link(10**9, 1)),), Link(10**9, 1), Overlap.NONE)
    with pytest.raises(InputError, match="that of waits is 'none'"):
        solve(model_of([10] * 8), cluster, 4, chunks=(2,), unlike_rounds=True)


def test_rounds_are_cut_unlike_on_teams_too() -> None:
    """Also where no plan has single devices."""
    how: dict[str, Any] = {"optimizer": "adam", "workers": 1, "teams": 2, "replicas": 1, "micro_batches": 8}
    model, cluster = load_model("gpt2-small"), load_cluster("4-v100-nvlink")
    alike, unlike = (
        solve(model, cluster, 8, unlike_rounds=each, chunks=2, schedules="zb-v", **how) for each in (False, True)
    )
    assert unlike.value < alike.value
    assert alike.gap == unlike.gap == 0
