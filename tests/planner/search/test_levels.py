"""Levels of ZeRO: what they save, and the best of several under one bound."""

from dataclasses import replace
from itertools import product

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan.analysis.explain.feasible import fit, limits_never_bind
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InfeasibleError, InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Model, Tie
from pipeplan.core.schedule import Action, Kind
from pipeplan.costs.assembly import assemble
from pipeplan.costs.pricing import price
from pipeplan.io.load import load_cluster, load_model
from pipeplan.search.build_plan import build_plan
from pipeplan.search.evaluate import evaluate
from pipeplan.search.nodes.layouts import layouts, packed_layouts
from pipeplan.search.space.space import Space
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


def test_plans_have_the_level_at_which_they_are_priced() -> None:
    """Whatever the replicas of their stages: prices at a plan's level are those that it was searched with."""
    cluster, job, unlike = Cluster.uniform(4, DeviceKind("unit"), Link(10**9, 0)), Job(4, optimizer="adam"), 0
    for level in (0, 1):
        space = Space(model(), cluster, replace(job, zero=(level,), schedules=("gpipe",)))
        for groups, _ in space.device_groups(1):
            edges = (*range(len(groups)), 4)
            for candidate in space.candidates(groups, 1):
                evaluated = evaluate(cluster, candidate, edges)
                plan = build_plan(model(), cluster, replace(job, zero=(0, 1)), evaluated, 0)
                again = price(model(), cluster, groups, 1, replace(job, zero=(plan.zero,)))
                assert assemble(again, cluster, edges) == plan.pipeline
                unlike += min(candidate.replicas) < max(candidate.replicas)
    assert unlike > 5


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
    text = " ".join(str(found).split())
    reach = "equally many micro-batches for all replicas, equally many replicas of all stages"
    assert f"levels 0 to 3 of ZeRO (from level 2 on: {reach})" in text


def test_a_level_that_fits_is_found() -> None:
    """With 270 bytes a device the model fits on one stage at level 3 only, and 100 bytes are too few for all."""
    small, alone = equal_devices(4, 270, Link(10**9, 0)), {"depths": (1,), "optimizer": "adam"}
    assert solve(model(), small, 4, zero=(0, 1, 3), **alone).plan.zero == 3
    with pytest.raises(InfeasibleError):
        solve(model(), small, 4, zero=(0, 1), **alone)
    with pytest.raises(InfeasibleError):
        solve(model(), equal_devices(4, 100), 4, zero=(0, 2, 3), **alone)


def test_every_number_of_replicas_is_searched_on_a_large_cluster() -> None:
    """On 24 devices, four to a node, three replicas share three micro-batches; two or four do not."""
    nodes = (Node(("unit",) * 4, Link(10**9, 0)),) * 6
    cluster = Cluster("large", {"unit": DeviceKind("unit")}, nodes, Link(10**9, 0), overlap=Overlap.COPY)
    space = Space(model(), cluster, Job(3, zero=(3,)))
    assert {layout.unit for layout in layouts(space, 3)} == {1, 3}
    assert {layout.unit for layout in packed_layouts(space, 3)} == {1, 3}


def test_micro_batches_of_other_sizes_are_compared_where_all_share_them() -> None:
    """Of twelve samples four replicas share three micro-batches each of one sample, but not six of two."""
    result = solve(model_of([10_000] * 6, sizes=(1, 2)), equal_devices(4), 12, zero=(3,), replicas=(4,), robust=0.1)
    assert result.robust is not None
    assert {row.evaluated.candidate.chain.micro_batch for row in result.robust.compared} == {1}


def test_replicas_share_micro_batches_equally() -> None:
    """Four micro-batches on three devices: two of them are used, or all four of four."""
    plan = solve(model(), equal_devices(3), 4, zero=(3,)).plan
    assert plan.stages[0].replicas in (1, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objective": "bottleneck"}, "time of steps"),
        ({"intra_layer": True}, "intra_layer"),
        ({"schedules": ("fbp-as",)}, "one action at a time"),
        ({"zero": (3,), "schedules": ("any",)}, "orders of families"),
        ({"zero": (4,)}, "at most 3"),
        ({"zero": "x"}, "commas between"),
    ],
)
def test_what_a_level_excludes_is_named(options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        solve(model(), equal_devices(2), 4, **{"zero": (0, 3), **options})


def test_shared_weights_are_on_one_stage_from_level_2_on() -> None:
    """They stay gathered, as gradients too, between the first of their layers and the last: 2 x 64 bytes more."""
    tied = replace(model(), ties=(Tie(("l0", "l3"), 32),))
    plan = solve(tied, equal_devices(4), 4, zero=(3,), replicas=(2,)).plan
    plain = solve(model(), equal_devices(4), 4, zero=(3,), replicas=(2,), depths=(1,)).plan
    assert len(plan.stages) == 1
    assert plan.stages[0].memory.workspace == plain.stages[0].memory.workspace + 2 * 64
    with pytest.raises(InputError, match=r"level 3 of ZeRO .* share weights \(l0, l3\)"):
        solve(tied, equal_devices(2), 4, zero=(0, 3), depths=(2,))
    assert solve(tied, equal_devices(2), 4).baselines["fully-sharded"].evaluated is not None


def test_where_memory_is_short_the_stages_of_a_pipeline_are_sharded() -> None:
    """Pairs of devices have no room for half of the model at level 1; at level 3 they gather less than all would."""
    deep = model_of([MANY] * 12, parameters=[100] * 12, update=[8] * 12)
    cluster, options = equal_devices(4, 1_780, Link(10**8, 0)), {"optimizer": "adam", "recompute": "none"}
    found = solve(deep, cluster, 8, zero=(0, 1, 3), replicas=(2, 4), **options)
    assert (found.plan.zero, [stage.replicas for stage in found.plan.stages]) == (3, [2, 2])
    assert found.value == found.bound < solve(deep, cluster, 8, zero=(3,), replicas=(4,), **options).value
    with pytest.raises(InfeasibleError):
        solve(deep, cluster, 8, zero=(0, 1), replicas=(2, 4), **options)


def test_replicas_that_gather_in_every_pass_begin_it_together() -> None:
    """Every second device of stage 0 sends over a slow network, so that all four wait for it."""
    kinds, fast = {"unit": DeviceKind("unit")}, Link(10**12, 0)
    nodes = Node(("unit",) * 3, fast), Node(("unit",), fast)
    cluster = Cluster("two nodes", kinds, nodes, Link(10**9, 0), overlap=Overlap.COPY)
    whole = model_of([MANY] * 2, parameters=[32] * 2, output=[200, 1], saved=[200, 200])
    options = {"depths": (2,), "replicas": (2,), "order": "given", "recompute": "none", "schedules": ("gpipe",)}
    found = solve(whole, cluster, 4, zero=(3,), **options)
    starts = {span.action: span.start for span in found.timeline.spans}
    assert all(
        starts[Action(kind, stage, m)] == starts[Action(kind, stage, m + 1)]
        for kind, stage, m in product((Kind.FORWARD, Kind.BACKWARD), range(2), (0, 2))
    )
    unequal = {flight.end - flight.start for flight in found.timeline.transfers}
    assert len(unequal) > 1


@pytest.mark.slow
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
        ({"optimizer": "adam", "depths": (2,)}, (0, 1, 2, 3)),
        ({"optimizer": "adam", "objective": "period"}, (0, 1, 2, 3)),
        ({"optimizer": "adam", "objective": "bottleneck"}, (0,)),
        ({"optimizer": "adam", "zero": (2, 0)}, (0, 2)),
    ],
)
def test_every_level_that_suits_is_searched(options: dict, levels: tuple[int, ...]) -> None:
    assert Spaces(model(), equal_devices(4), Job(4, **options)).levels == levels
    assert Spaces(model(), equal_devices(1), Job(4, **options)).levels == options.get("zero", (0,))[::-1]


def test_levels_that_are_not_named_are_left_out_where_they_cannot_be_planned() -> None:
    tied = replace(model(), ties=(Tie(("l0", "l3"), 32),))
    assert Spaces(tied, equal_devices(4), Job(4, optimizer="adam", depths=(2,))).levels == (0, 1)
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
