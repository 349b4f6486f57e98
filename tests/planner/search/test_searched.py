"""The description of the searched space in an answer: each sentence appears exactly where it is true."""

from dataclasses import replace

import pytest

from helpers.instances import equal_devices, model_of, tiny_chain, two_kinds_of_device
from helpers.operators import perceptrons
from pipeplan import load_cluster, load_model
from pipeplan.analysis.compare import compare
from pipeplan.analysis.explain import explain, explain_plan
from pipeplan.analysis.frontier import fewest_devices, frontier
from pipeplan.core import searched
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.job import Job
from pipeplan.core.model import Model, Tie
from pipeplan.search.nodes.layouts import layouts
from pipeplan.search.scope import Scope
from pipeplan.search.space.space import Space
from pipeplan.solve import solve
from pipeplan.solve.reach import searched_for

CHAIN = model_of([2, 7, 3, 4], saved=[5] * 4, output=[1] * 4, parameters=[8] * 4)
SKIP = replace(CHAIN, layers=(*CHAIN.layers[:3], replace(CHAIN.layers[3], inputs=("l0", "l2"))))
TWO_KINDS = two_kinds_of_device()
ANY = {"extrapolate": True}
UNKNOWN = f"{searched.TENSOR}, as the operators of its layers are not known: profile it again"
TIED = replace(CHAIN, ties=(Tie(("l0", "l3"), 8),))


def nodes(count: int, each: int, memory: int | None = None) -> Cluster:
    """``count`` nodes of ``each`` equal devices."""
    kind = DeviceKind("unit", memory=memory)
    row = (Node((kind.name,) * each, Link()),) * count
    return Cluster("nodes", {kind.name: kind}, row, Link(latency=1), Overlap.COPY)


def missing(model: Model = CHAIN, cluster: Cluster | None = None, batch: int = 4, **options: object) -> tuple[str, ...]:
    """The sentences on plans that are not searched, for a job."""
    cluster = equal_devices(4) if cluster is None else cluster
    return searched_for(model, cluster, Job(batch, **options)).not_searched  # type: ignore[arg-type]


def test_the_text_of_every_answer_says_both() -> None:
    """Text and data both describe what was searched, what was not, and the source of the costs."""
    result = solve(tiny_chain(), equal_devices(2), batch=4)
    text = " ".join(str(result).split())
    assert "costs: measured on made up for a test" in text
    assert "1 or 2 stages of contiguous layers" in text
    for sentence in result.searched.not_searched:
        assert sentence in text
    data = result.as_json()
    assert data["searched"]["not_searched"] == list(result.searched.not_searched)  # type: ignore[index, call-overload]
    assert data["costs"]["in_words"] in text  # type: ignore[index, call-overload]


def test_what_is_left_out_is_named() -> None:
    """Nine common techniques that are never searched appear in the list of an ordinary job."""
    named = missing(cluster=nodes(3, 4, memory=100), optimizer="adam")
    for sentence in (
        UNKNOWN,
        searched.INTERLEAVED,
        searched.BUCKETS_ON_CARDS,
        searched.HIDDEN_AGAIN,
        searched.SHARDED_STAGES,
        searched.PLACEMENTS,
        searched.STALE,
        searched.SLICES,
        searched.OFFLOADING,
    ):
        assert sentence in named


@pytest.mark.parametrize(
    ("sentence", "true", "false"),
    [
        (UNKNOWN, {}, {"cluster": equal_devices(1)}),
        (UNKNOWN, {}, {"model": perceptrons()}),
        (searched.INTERLEAVED, {}, {"depths": (1,)}),
        (searched.OVERLAPPED, {"overlap_reduction": False}, {}),
        (searched.OVERLAPPED, {"overlap_reduction": False}, {"overlap_reduction": False, "replicas": (1,)}),
        (searched.OVERLAPPED, {"objective": "bottleneck"}, {"objective": "bottleneck", "replicas": (1,)}),
        (searched.FRONT_FIRST, {"objective": "period"}, {}),
        (searched.FRONT_FIRST, {"objective": "period"}, {"objective": "period", "staleness": 1}),
        (searched.BUCKETS_ON_CARDS, {"cluster": nodes(2, 2)}, {"cluster": nodes(1, 4)}),
        (searched.HIDDEN_AGAIN, {}, {"recompute": "full"}),
        (searched.SHARDED, {"zero": (0,)}, {}),
        (searched.SHARDED, {"zero": (0,)}, {"zero": (0,), "replicas": (1,)}),
        (searched.SHARDED, {"objective": "bottleneck"}, {"objective": "period"}),
        (searched.SHARDED_TIES, {"model": TIED}, {"model": TIED, "depths": (1,)}),
        (searched.SHARDED_STAGES, {}, {"zero": (0,)}),
        (searched.SHARDED_STAGES, {}, {"equal_replicas": True}),
        (searched.SHARDED_STAGES, {}, {"model": TIED}),
        (searched.SHARDED_ORDERS, {"schedules": ("any",)}, {}),
        (searched.SHARDED_ORDERS, {"schedules": ("any",)}, {"schedules": ("any",), "zero": (1,)}),
        (searched.SHARDED_STAGES, {"zero": (0, 2)}, {"replicas": (1,)}),
        (searched.STATE, {"optimizer": "adam", "zero": (0,)}, {"optimizer": "adam"}),
        (searched.STATE, {"optimizer": "adam", "zero": (0, 3)}, {"optimizer": "adam", "zero": (1,)}),
        (searched.STATE, {"zero": (0,)}, {"zero": (0,), "objective": "bottleneck"}),
        (searched.UNLIKE_LEVELS, {}, {"zero": (0,)}),
        (searched.UNLIKE_LEVELS, {"optimizer": "adam"}, {"optimizer": "adam", "depths": (1,)}),
        (searched.UNLIKE_LEVELS, {"optimizer": "adam", "zero": (0, 1)}, {"optimizer": "adam", "zero": (1,)}),
        (searched.PLACEMENTS, {"cluster": nodes(3, 4)}, {"cluster": nodes(1, 4)}),
        (searched.PLACEMENTS, {"cluster": nodes(3, 4)}, {"cluster": nodes(4, 1)}),
        (searched.PLACEMENTS, {"cluster": nodes(3, 4)}, {"cluster": nodes(3, 4), "order": "given"}),
        (searched.PLACEMENTS, {"cluster": nodes(3, 4)}, {"cluster": nodes(2, 2)}),
        (searched.UNLIKE_KINDS, {"cluster": TWO_KINDS}, {}),
        (searched.UNLIKE_KINDS, {"cluster": TWO_KINDS}, {"cluster": TWO_KINDS, "replicas": (1,)}),
        (searched.OTHER_COUNTS, {}, {"schedules": ("gpipe",)}),
        (searched.ASKED_FOR, {"schedules": ("gpipe",)}, {"schedules": ("any",)}),
        (searched.UNEQUAL_ORDERS, {"schedules": ("any",)}, {"schedules": ("any",), "replicas": (1,)}),
        (searched.BRANCHES, {"model": SKIP}, {}),
        (searched.NOT_CONTIGUOUS, {"model": SKIP}, {"model": SKIP, "objective": "bottleneck"}),
        (searched.STALE, {}, {"objective": "bottleneck"}),
        (searched.SLICES, {}, {"depths": (1,)}),
        (searched.OFFLOADING, {"memory": 100}, {}),
        (searched.CHECKPOINTS, {"memory": 100}, {"memory": 100, "recompute": "none"}),
        (searched.OTHER_SIZES, {"micro_batches": (4,)}, {"batch": 1}),
        (searched.UNPROFILED_SIZES, {}, {"extrapolate": True}),
        (
            searched.OTHER_SIZES,
            {**ANY, "micro_batches": (1, 4)},
            {**ANY, "micro_batches": (1, 2, 4)},
        ),
        (
            searched.UNEQUAL_SIZES,
            {**ANY, "micro_batches": (1, 2, 4)},
            {**ANY, "micro_batches": (1, 4)},
        ),
    ],
)
def test_a_sentence_appears_where_it_is_true(sentence: str, true: dict, false: dict) -> None:
    """The sentence appears for the first job and not for the second."""
    assert sentence in missing(**true)
    assert sentence not in missing(**false)


@pytest.mark.parametrize(
    ("asked", "reach"),
    [
        ({}, searched.WRITTEN),
        ({"schedules": ("any",)}, searched.ANY_ORDER),
        ({"objective": "bottleneck"}, searched.ENDLESS),
    ],
)
def test_how_far_the_schedules_reach_is_said(asked: dict, reach: str) -> None:
    """Lists as written, any order of them, or an endless pipeline, in which it does not matter."""
    assert searched_for(CHAIN, equal_devices(4), Job(4, **asked)).schedules_reach == reach


def test_a_graph_cut_along_downsets_is_not_called_contiguous() -> None:
    """Where stages take any layers that read from no later stage, the answer says so, without a listed order."""
    found = searched_for(SKIP, equal_devices(4), Job(4, objective="bottleneck"))  # type: ignore[arg-type]
    assert found.partitions == searched.DOWNSETS
    assert "contiguous" not in found.as_text()
    assert searched_for(SKIP, equal_devices(4), Job(4)).partitions == searched.CONTIGUOUS


def test_options_that_narrow_the_space_are_named() -> None:
    """Depths, replicas, numbers of micro-batches and layer constraints appear in the sentence."""
    job = Job(4, depths=(2,), replicas=(1,), micro_batches=(4,), pin=(("l0", "d0"),), together=(("l1", "l2"),))
    words = searched_for(CHAIN, equal_devices(4), job).as_text()
    assert words.startswith("2 stages of")
    assert searched.ALONE in words
    assert "micro-batches of 1;" in words
    assert "--pin" in words
    assert "--together" in words


@pytest.mark.parametrize(("count", "thinned"), [(2, False), (8, False), (32, True)])
def test_numbers_of_replicas_that_no_layout_has_are_named(count: int, thinned: bool) -> None:
    """On 256 devices some numbers are left out, and the sentence lists those of layouts; on 16 and 64 none is."""
    model = load_model("gpt2-xl")
    cluster = load_cluster("64-h100")
    cluster = replace(cluster, nodes=(cluster.nodes[0],) * count)
    job = Job(8 * count)
    found = searched_for(model, cluster, job)
    assert (searched.OTHER_WIDTHS in found.not_searched) is thinned
    assert any("multiples of" in sentence for sentence in found.not_searched) is thinned
    assert (found.widths == f"1 to {8 * count}") is not thinned
    if thinned:
        space = Space(model, cluster, job)
        every = [each for size in space.sizes for each in layouts(space, job.batch // size)]
        assert {w * each.unit for each in every for w in each.widths} == set(Scope(space).widths)


def test_tables_and_explanations_name_the_space_of_their_bounds() -> None:
    """Comparison, explanation, frontier and the fewest devices print the searched space and the source of the costs."""
    model, cluster, job = tiny_chain(), equal_devices(2, memory=200), Job(4)
    result = solve(model, cluster, job=job)
    for text in (
        str(explain(model, cluster, result=result, each=2)),
        str(frontier(model, cluster, job, "devices", time_limit=5)),
        str(fewest_devices(model, cluster, job, time_limit=5)),
    ):
        assert "searched (the bound holds for these plans)" in text
        assert "not searched" in text
        assert "costs: measured" in text
    assert "lists what was searched" in str(explain_plan(result.plan))
    table = compare(model, cluster, job, time_limit=10)
    assert set(result.searched.schedules) == set(table.searched.schedules)
    assert table.costs == result.costs


def test_an_answer_outside_of_what_is_listed_says_so() -> None:
    """Two devices of one kind have unlike links in their nodes: no listed stage has both, a heuristic's may."""
    row = (Node(("unit",), Link(10**9)), Node(("unit",), Link(10**8)))
    unlike = Cluster("unlike", {"unit": DeviceKind("unit")}, row, Link(10**9), Overlap.COPY)
    model = model_of([20, 20], parameters=[8, 8])
    found = solve(model, unlike, batch=4, time_limit=10)
    widths = [stage.replicas for stage in found.plan.stages]
    assert widths == [2] and "one device per stage" in found.searched.as_text()
    assert "beside these the answer's plan, which a heuristic placed otherwise (1 stage, 2 devices" in (
        found.searched.as_text()
    )
    assert searched.UNLIKE_NODES in found.searched.not_searched
    alone = solve(model, unlike, batch=4, replicas=1, time_limit=10)
    assert not alone.searched.answer and searched.UNLIKE_NODES not in alone.searched.not_searched


@pytest.mark.parametrize(
    "name, kind, experts",
    [
        ("layers.0.mlp.experts", "", True),
        ("layers.0.block_sparse_moe", "", True),
        ("layers.0", "MixtralDecoderLayer", True),
        ("layers.0", "Qwen3MoeSparseMoeBlock", True),
        ("layers.0.mlp", "MoE", True),
        ("layers.0.smoe_path", "Smoother", False),
        ("layers.0.mlp", "LlamaMLP", False),
    ],
)
def test_models_with_experts_are_told_that_these_are_not_spread(name: str, kind: str, experts: bool) -> None:
    """By the names and kinds of layers; on one device there is nothing to spread."""
    model = replace(CHAIN, layers=(*CHAIN.layers[:-1], replace(CHAIN.layers[-1], name=name, kind=kind)))
    assert (searched.EXPERTS in missing(model)) is experts
    assert searched.EXPERTS not in missing(model, equal_devices(1))


@pytest.mark.parametrize("frozen", [0, 16])
def test_teams_that_keep_frozen_weights_whole_are_told_so(frozen: int) -> None:
    """Members hold all of these: what would share them out is not searched, where there are teams and such weights."""
    model = perceptrons(2, (1,))
    model = replace(model, layers=(replace(model.layers[0], frozen=frozen), *model.layers[1:]))
    assert (searched.FROZEN_TEAMS in missing(model, teams=(1, 2))) is bool(frozen)
    assert searched.FROZEN_TEAMS not in missing(model)
