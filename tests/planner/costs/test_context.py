"""Products and attention on parts of the tokens: what is sent, who works longest, where a team wants it."""

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.instances import equal_devices
from helpers.operators import COST, block, perceptrons
from helpers.ways import cuts_of
from pipeplan.core.cluster import DeviceKind, Link
from pipeplan.core.errors import InputError
from pipeplan.core.layers import LayerCost
from pipeplan.core.operators import INPUT, TOKEN, Attention, Operator, OperatorGraph, Weight
from pipeplan.core.plan import Plan
from pipeplan.core.strategies import BY_HEADS, BY_RING, WHOLE, AxisStrategy, Placements
from pipeplan.costs.sharding.attention import split_attention
from pipeplan.costs.sharding.exchanges import Exchange
from pipeplan.costs.sharding.layer_ways import LayerWays
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.ring import messages, ring_passes, ring_time
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.costs.sharding.shapes import Mesh
from pipeplan.costs.sharding.strategies import strategies
from pipeplan.io.operators_entry import operators_data
from pipeplan.io.plan_file import plan_data
from pipeplan.solve import solve

AXES = (TOKEN, "head")
ATTENTION = Operator(
    "attention", "attention", {"head": 8, TOKEN: 8}, {INPUT: AXES}, AXES, 60, forward_flops=1600,
    attention=Attention(queries=60, keys=128, heads=4, causal=True),
)  # fmt: skip

UNIT = DeviceKind("unit")
KEYS, RING, HEADS = AxisStrategy(TOKEN), AxisStrategy(TOKEN, by=BY_RING), AxisStrategy(TOKEN, by=BY_HEADS)


def test_attention_has_three_ways() -> None:
    """By keys, by ring, and by heads where these can be divided; what is sent and needed beside."""
    by = [AxisStrategy(), AxisStrategy("head"), KEYS, RING, HEADS]
    assert strategies(ATTENTION, (4,)) == tuple((entry,) for entry in by)
    assert strategies(ATTENTION, (8,)) == tuple((entry,) for entry in by[:-1])
    assert strategies(ATTENTION, (4,), tokens=False) == tuple((entry,) for entry in by[:2])
    own = Rooflines(OperatorGraph((ATTENTION,), {INPUT: 60}), COST, 0, DeviceKind("unit"), None, 1)
    methods = [split_attention(own, ATTENTION, (entry,), (4,)) for entry in (KEYS, RING, HEADS)]
    assert split_attention(own, ATTENTION, (AxisStrategy("head"),), (4,)) is None
    gather, scatter, turn = Exchange.GATHER, Exchange.SCATTER, Exchange.TURN
    keys, ring, heads = (
        [(each.kind, each.size) for each in method.exchanges()] for method in methods if method is not None
    )
    assert keys == [(gather, 128), (gather, 128), (scatter, 128)]
    assert heads == [(turn, size) for size in (188, 60, 188, 120, 188)]
    assert not ring
    assert [method.beside for method in methods if method is not None] == [256, 160, 124]


def test_a_ring_hides_what_it_sends() -> None:
    """Steps of a team of three take as long as a block or a message; a causal mask leaves the first block half."""
    assert messages(3, back=False) == (1, 1)
    assert messages(3, back=True) == (1, 2, 1, 1)
    assert messages(2, back=True) == (1, 1, 1)
    even, causal = (1, 1, 1), (1, 2, 2)
    assert ring_time(300, even, (70, 70)) == 300
    assert ring_time(300, even, (70, 140, 70, 70)) == 100 + 140 + 100 + 70
    assert ring_time(500, causal, (150, 150)) == 150 + 200 + 200
    assert ring_time(300, even, ()) == 300
    passes, link = (300, 600, 300), Link(10**9)
    assert ring_passes(passes, even, 70, link, True) == [300, 3 * 200 + 70, 100 + 140 + 100 + 70]
    assert ring_passes(passes, even, 70, link, False) == list(passes)


def test_a_backward_without_weight_gradients_has_one_overhead() -> None:
    """Of 1000 ns on a kind with 100 ns of it a quarter of the tokens takes 100 + 900 / 4; of two halves, 200 + 200."""
    kind, operator = DeviceKind("unit", overhead=100), replace(ATTENTION, input_gradient_flops=3200)
    for inputs, weights, expected in ((1000, 0, 325), (600, 400, 400)):
        cost = replace(COST, backward=1000, input_gradient=inputs, weight_gradient=weights)
        own = Rooflines(OperatorGraph((operator,), {INPUT: 60}), cost, 0, kind, None, 1)
        assert own.constant("backward") + own.passes(operator, {TOKEN: 4})[1] == expected


def test_slow_links_are_hidden_by_a_ring() -> None:
    """Keys that take as long as attention itself are gathered before it, or come while it runs, in less memory."""
    graph = OperatorGraph((ATTENTION,), {INPUT: 60})
    cost = replace(COST, forward=1600, backward=3200, input_gradient=3200, weight_gradient=0, workspace=0)
    link = Link(128 * 10**9 // 1050)
    keys, ring = (device(graph, cost, link, {ATTENTION.name: entry}) for entry in (KEYS, RING))
    assert (keys.forward, ring.forward) == (700 + 3 * 263, 263 + 2 * 263 + 200)
    assert ring.workspace < keys.workspace
    slower = device(graph, cost, link, {ATTENTION.name: RING}, kind=DeviceKind("unit", shard_overhead=100))
    assert slower.forward == ring.forward + 4 * 100


def device(
    graph: OperatorGraph,
    cost: LayerCost,
    link: Link,
    main: dict[str, AxisStrategy],
    before: Placements = (0,),
    kind: DeviceKind = UNIT,
) -> LayerCost:
    """What one of four devices takes, whose layer makes parts of the tokens, under given main strategies."""
    own = Rooflines(graph, cost, graph.parameters, kind, None, 1)
    problem = MeshProblem(own, Mesh((4,), (link,)), before, (0,), gathers=False, keeps=False)
    return LayerWays(problem, again=False).device(tuple((name, (entry,)) for name, entry in main.items()))


@pytest.mark.parametrize("method", ["KEYS", "HEADS", "RING"])
def test_operands_that_are_split_otherwise_are_gathered_for_attention_on_tokens(method: str) -> None:
    """A weight's columns, which have no tokens: attention on tokens needs all, and is not bound to their loop.

    They are gathered forward, and once more in the backward.
    """
    weight = Weight("wide.weight", ("f", "h"), 400)
    wide = Operator("wide", "linear", {"f": 8}, {INPUT: (TOKEN, "h")}, ("f",), 64, weights=(weight,), forward_flops=1)
    reads = replace(ATTENTION, reads={"wide": ("head",)})
    graph = OperatorGraph((wide, reads), {INPUT: 60})
    cost = replace(COST, forward=1600, backward=3200, input_gradient=1600, weight_gradient=1600, workspace=0)
    own = {ATTENTION.name: {"KEYS": KEYS, "HEADS": HEADS, "RING": RING}[method]}
    split, whole = (
        device(graph, cost, Link(10**9, 1), {"wide": AxisStrategy(loop)} | own if loop else own, (WHOLE,))
        for loop in ("f", "")
    )
    assert split.forward - whole.forward == 3 * (64 // 4 + 1)
    assert split.workspace - whole.workspace == 64


def test_the_last_tokens_work_longest() -> None:
    """Of causal attention by keys, 7 of 16 squares for a team of four; a quarter by heads, or without the mask."""
    cost, kind = replace(COST, forward=1600), DeviceKind("unit")
    whole = replace(ATTENTION, attention=replace(ATTENTION.attention, causal=False))
    for operator, by_keys, expected in ((ATTENTION, 4, 700), (ATTENTION, 1, 400), (whole, 4, 400)):
        own = Rooflines(OperatorGraph((operator,), {INPUT: 60}), cost, 0, kind, None, 1)
        assert own.passes(operator, {TOKEN: 4}, by_keys)[0] == expected


def test_products_have_a_matrix() -> None:
    """Plans name a product that runs on tokens by its matrix; a sum of vectors is none."""
    gain, axes = (Weight("gain.weight", ("f",), 8),), (TOKEN, "f")
    vector = Operator("gain", "linear", {TOKEN: 10}, {INPUT: axes}, axes, 60, weights=gain)
    OperatorGraph((vector,), {INPUT: 60})
    with pytest.raises(InputError, match="a product has a matrix"):
        OperatorGraph((replace(vector, product=True),), {INPUT: 60})


@pytest.mark.parametrize("owner", [0, 1])
def test_no_weight_has_the_name_of_what_plans_split_by_tokens(owner: int) -> None:
    """Plans name products by their weights and attention by itself, so the name is no weight's of any operator."""
    weights = [Weight(name, ("f", "h"), 400) for name in ("first.weight", "last.weight")]
    axes = {"reads": {INPUT: (TOKEN, "h")}, "makes": (TOKEN, "f"), "output": 64}
    makers = [Operator(own.name[:-7], "linear", {"f": 8}, **axes, weights=(own,), product=True) for own in weights]
    OperatorGraph(tuple(makers), {INPUT: 60})
    makers[1 - owner] = replace(makers[1 - owner], name=weights[owner].name)
    with pytest.raises(InputError, match="has the name of no weight"):
        OperatorGraph(tuple(makers), {INPUT: 60})


def test_long_sequences_are_multiplied_where_they_are(tmp_path: Path) -> None:
    """Tokens of many bytes beside small weights: products on parts, unless it is left out; plans and answers say so."""
    graph = block(2, 4)
    by_plan = [
        replace(each, loops={**each.loops, TOKEN: 10}, product=each.kind == "linear") for each in graph.operators
    ]
    graph = OperatorGraph(tuple(by_plan), graph.inputs)
    assert operators_data(graph)["operators"][1]["product"] is True
    model, cluster = perceptrons(3, (1,), graph), equal_devices(2, link=Link(10**7, 10))
    found, without = (solve(model, cluster, 8, teams=(2,), workers=1, context_parallel=own) for own in (True, False))
    assert [cuts_of(model, "pair", strategies) for _, strategies in found.plan.strategies] == [
        {"wide": TOKEN, "narrow": TOKEN}
    ] * 3
    assert "context" in found.plan.parallelism and "context" not in without.plan.parallelism
    assert found.value < without.value
    assert "context-parallel teams of 2" in str(found)
    said = [" ".join(each.searched.not_searched) for each in (found, without)]
    assert ["(context parallelism)" in each for each in said] == [False, True]
    assert ["(even work under a causal mask)" in each for each in said] == [True, False]
    found.plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == found.plan
    assert "context" not in plan_data(found.plan)
