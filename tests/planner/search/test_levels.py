"""Levels of ZeRO: what they save, and the best of several under one bound."""

from dataclasses import replace

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan.analysis.explain.feasible import fit, limits_never_bind
from pipeplan.core.cluster import Cluster, DeviceKind, Link
from pipeplan.core.errors import InfeasibleError, InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Model, Tie
from pipeplan.io.load import load_cluster, load_model
from pipeplan.search.space.spaces import Spaces
from pipeplan.solve import solve

MANY = 64
"""Nanoseconds of a layer's forward that hide any gather of its 32 bytes over the link."""


def model() -> Model:
    """Four equal layers of 32 bytes of parameters."""
    return model_of([MANY] * 4, parameters=[32] * 4, update=[8] * 4, sizes=(1, 2))


def answer(level: int, memory: int | None = None, speed: float = 1.0, **options: object) -> tuple[int, int]:
    """Value, and bytes of the only stage on four devices, whose speed beside collectives is given."""
    kind = DeviceKind("unit", memory=memory, speed_beside_collectives=speed)
    job = Job(4, depths=(1,), replicas=(4,), optimizer="adam", zero=(level,), **options)  # type: ignore[arg-type]
    result = solve(model(), Cluster.uniform(4, kind, Link(10**9, 0)), job=job)
    assert result.value == result.bound
    assert result.plan.zero == level
    return result.value, result.plan.stages[0].memory.total


def test_each_level_keeps_less() -> None:
    """128 bytes of parameters, as many of gradients, and 256 of state; from level 2 on collectives need buffers."""
    assert answer(0)[1] == 128 + 128 + 256
    assert answer(1)[1] == 128 + 128 + 64
    assert answer(2)[1] == 128 + 32 + 32 + 64 + 3 * 32  # whole weights and a share; a layer's sum
    assert answer(3)[1] == 32 + 32 + 64 + 4 * 32


def test_what_each_level_waits_for() -> None:
    """A sum, or a gather, of a layer takes three rounds of 8 bytes; a pass hides others, an update takes 8 ns."""
    work, sum_ = 4 * (MANY + 2 * MANY), 3 * 8
    assert answer(0)[0] == work + 2 * sum_ + 4 * 8  # the first layer's all-reduce is exposed
    assert answer(1)[0] == work + sum_ + sum_ + 4 * 2  # its gather is, and its sum
    assert answer(2)[0] == work + sum_ + sum_ + 4 * 2
    assert answer(3)[0] == work + 2 * sum_ + sum_ + 4 * 2  # the first gather of either pass, and the last sum
    behind = {"overlap_reduction": False}
    assert answer(1, **behind)[0] == work + 4 * sum_ + 4 * (2 + sum_)
    assert answer(2, **behind)[0] == work + 4 * sum_ + 4 * (2 + sum_)
    assert answer(3, **behind)[0] == work + 3 * 4 * sum_ + 4 * 2


def test_what_each_level_loses_beside_collectives() -> None:
    """At half the speed half of each collective is lost, except of those that are waited for."""
    sum_ = 3 * 8
    assert answer(0, speed=0.5)[0] == answer(0)[0] + 3 * 2 * sum_ // 2
    assert answer(1, speed=0.5)[0] == answer(1)[0] + (3 + 3) * sum_ // 2
    assert answer(2, speed=0.5)[0] == answer(2)[0] + (3 + 3) * sum_ // 2
    assert answer(3, speed=0.5)[0] == answer(3)[0] + (3 + 3 + 3) * sum_ // 2
    for level in range(4):
        assert answer(level, speed=0)[0] == answer(level, overlap_reduction=False)[0]


def test_the_best_of_several_levels_has_one_bound() -> None:
    """Each level alone, and all of them: the least value and the least bound; rows are inside if any level has them."""
    cluster = equal_devices(4, None, Link(10**9, 0))
    one = {level: solve(model(), cluster, 4, zero=(level,)) for level in range(4)}
    reports: list[tuple[int | None, int]] = []
    found = solve(model(), cluster, 4, zero=(3, 0, 2, 1), on_progress=lambda v, b, _: reports.append((v, b)))
    assert found.value == found.bound == min(each.value for each in one.values())
    assert found.plan.bound == found.bound
    assert not found.baselines["fully-sharded"].outside
    assert one[0].baselines["fully-sharded"].outside
    assert all(bound <= found.value for _, bound in reports)
    assert "levels 0 to 3 of ZeRO, on one stage from level 2 on" in " ".join(str(found).split())


def test_a_level_that_fits_is_found() -> None:
    """With 270 bytes a device the model fits on one stage at level 3 only, and 100 bytes are too few for all."""
    small, alone = equal_devices(4, 270, Link(10**9, 0)), {"depths": (1,), "optimizer": "adam"}
    assert solve(model(), small, 4, zero=(0, 1, 3), **alone).plan.zero == 3
    with pytest.raises(InfeasibleError):
        solve(model(), small, 4, zero=(0, 1), **alone)
    with pytest.raises(InfeasibleError):
        solve(model(), equal_devices(4, 100), 4, zero=(0, 2, 3), **alone)


def test_replicas_share_micro_batches_equally() -> None:
    """Four micro-batches on three devices: two of them are used, or all four of four."""
    plan = solve(model(), equal_devices(3), 4, zero=(3,)).plan
    assert plan.stages[0].replicas in (1, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"depths": (2,)}, "one stage"),
        ({"objective": "bottleneck"}, "time of a step"),
        ({"intra_layer": True}, "intra_layer"),
        ({"schedules": ("fbp-as",)}, "one action at a time"),
        ({"zero": (4,)}, "at most 3"),
        ({"zero": 3}, "several values"),
    ],
)
def test_what_a_level_excludes_is_named(options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        solve(model(), equal_devices(2), 4, **{"zero": (0, 3), **options})


def test_shared_weights_are_refused_from_level_2_on() -> None:
    tied = replace(model(), ties=(Tie(("l0", "l3"), 32),))
    with pytest.raises(InputError, match=r"level 3 of ZeRO .* share \(l0, l3\)"):
        solve(tied, equal_devices(2), 4, zero=(0, 3))
    assert "share" in solve(tied, equal_devices(2), 4).baselines["fully-sharded"].why


def test_nobody_is_faster_with_fully_sharded_data_parallelism() -> None:
    """Llama 3 8B on 64 H100: level 1 on all of them hides its gathers better, and no plan of several stages does."""
    found = solve(load_model("llama3-8b"), load_cluster("64-h100"), 128, optimizer="adam", time_limit=30)
    assert found.gap < 0.001  # the bound counts the base of one bucket
    assert (found.plan.zero, len(found.plan.stages)) == (1, 1)
    assert found.value < found.baselines["fully-sharded"].value


@pytest.mark.parametrize(
    ("options", "levels"),
    [
        ({}, (0, 1, 2, 3)),
        ({"optimizer": "adam"}, (0, 1, 2, 3)),
        ({"optimizer": "adam", "replicas": (1,)}, (0,)),
        ({"optimizer": "adam", "micro_batches": (1,), "extrapolate": True}, (0,)),
        ({"optimizer": "adam", "depths": (2,)}, (0, 1)),
        ({"optimizer": "adam", "objective": "period"}, (0, 1)),
        ({"optimizer": "adam", "objective": "bottleneck"}, (0,)),
        ({"optimizer": "adam", "zero": (2, 0)}, (0, 2)),
    ],
)
def test_every_level_that_suits_is_searched(options: dict, levels: tuple[int, ...]) -> None:
    assert Spaces(model(), equal_devices(4), Job(4, **options)).levels == levels
    assert Spaces(model(), equal_devices(1), Job(4, **options)).levels == options.get("zero", (0,))[::-1]


def test_levels_that_are_not_named_are_left_out_where_they_cannot_be_planned() -> None:
    tied = replace(model(), ties=(Tie(("l0", "l3"), 32),))
    assert Spaces(tied, equal_devices(4), Job(4, optimizer="adam")).levels == (0, 1)
    streams = equal_devices(4, overlap="stream")
    assert Spaces(model(), streams, Job(4, schedules=("fbp-as",))).levels == (0, 1)


def test_an_explanation_looks_at_every_level() -> None:
    """What fits at one of the levels fits; that none does is proved level by level."""
    small, job = equal_devices(4, 270, Link(10**9, 0)), Job(4, depths=(1,), optimizer="adam", zero=(0, 3))
    found = fit(model(), small, job, time_limit=10)
    assert found.plan is not None
    assert found.plan.zero == 3
    none = fit(model(), equal_devices(4, 100), job, time_limit=10)
    assert none.verdict is False
    assert not limits_never_bind(model(), equal_devices(4, 128 * 3 + 256), replace(job, zero=(2,)))
