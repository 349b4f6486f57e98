"""Slices of unlike lengths: their times, and plans that are cut again."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from helpers.sliced_models import TOKENS, sliced_chain, token_operators, unit_cluster
from pipeplan import Plan
from pipeplan.core.job import Job
from pipeplan.core.layers import Layer, LayerCost
from pipeplan.core.model import Model, Profile, Provenance
from pipeplan.costs.layers import layer_costs
from pipeplan.costs.pricing import Prices
from pipeplan.costs.slices import cut, sliced
from pipeplan.costs.table import PASSES
from pipeplan.simulate import makespan
from pipeplan.simulate.claims import validate_claims
from pipeplan.solve import solve

JOB = Job(1, optimizer="sgd", micro_batches=(1,), replicas=(1,), depths=(3,), slices=(4,))


@pytest.mark.parametrize("seed", range(4))
def test_equal_lengths_take_what_equal_slices_take(seed: int) -> None:
    """Up to what is rounded: a nanosecond for each layer, pass and slice."""
    model, cluster = sliced_chain(Random(f"equal {seed}"), 3), unit_cluster(3)
    groups = tuple((device,) for device in cluster.devices)
    equal, same = (Prices(each, cluster, JOB).chain(groups, 1) for each in (sliced(model, 4), cut(model, (3,) * 4)))
    for name in ("saved", "output", "workspace", "boundary", "resident"):
        assert (getattr(equal, name) == getattr(same, name)).all()
    for name in (*PASSES, *(f"first_{each}" for each in PASSES)):
        assert abs(getattr(equal, name) - getattr(same, name)).max() <= 4


def test_a_slice_takes_longer_behind_more_tokens() -> None:
    """Attention of l tokens behind j looks back on j + l / 2 of them on average, and all else on none."""
    model, cluster = sliced_chain(Random("behind"), 3), unit_cluster(3)
    lengths = (5, 4, 2, 1)
    own = cut(model, lengths)
    chain = Prices(own, cluster, JOB).chain(tuple((device,) for device in cluster.devices), 1)
    assert own.slicing is not None and chain.unlike_slices is not None
    before = 0
    for k, length in enumerate(lengths):
        for i, (layer, cost) in enumerate(
            zip(own.slicing.layers, layer_costs(own.of_length[length], cluster.devices[0].kind, 1), strict=True)
        ):
            looks = int(cost.forward * layer.forward)
            expected = cost.forward - looks + looks * (2 * before + length) // TOKENS
            assert chain.unlike_slices[0][0][k, i] == expected
        before += length


def attending(share: int) -> Model:
    """Three equal layers, of which attention has so many of ten parts; passes take 3 and 6 us at any size."""
    layers = tuple(Layer(f"l{i}", 0, (f"l{i - 1}",) if i else (), operators="block") for i in range(3))
    profiles = tuple(
        Profile(
            "unit", size, (LayerCost(t + 3000, 2 * t + 6000, t, t, 48, 48, 0, 0),) * 3, Provenance("analytic", "own")
        )
        for size, t in ((1, 24_000), (2, 48_000))
    )
    return Model("attending", layers, profiles, operators={"block": token_operators(10 - share, share, 48)})


@pytest.mark.parametrize(("share", "schedules"), [(0, ()), (3, ()), (8, ()), (8, ("zb-h1-slices",))])
def test_a_plan_is_cut_again_where_that_is_faster(share: int, schedules: tuple[str, ...], tmp_path: Path) -> None:
    """The plan has all tokens, is valid, is saved whole, and its step is that of its slices; no bound is claimed."""
    job = replace(JOB, schedules=schedules)
    result = solve(attending(share), unit_cluster(3, bandwidth=None), job=job, workers=1, unequal_slices=True)
    plan = result.recut
    assert (plan is None) == (share == 0)  # equal work, and as many slices as suit that
    if plan is None:
        return
    assert (sum(plan.slices), plan.bound) == (TOKENS, 0)
    assert plan.slices[0] > plan.slices[-1]
    assert plan.step_time < result.value
    assert plan.step_time == makespan(plan.schedule, plan.pipeline)
    validate_claims(plan)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert "cut again: with" in str(result)
    assert result.as_json()["recut"]["slices"] == list(plan.slices)  # type: ignore[index, call-overload]
