"""Products and attention on parts of the tokens: what is sent, who works longest, where a team wants it."""

from dataclasses import replace
from pathlib import Path

import pytest
from pipeplan.costs.teams.problem import TeamProblem
from pipeplan.costs.teams.signatures import (
    RING,
    TURNED,
    UNSPLIT,
    Ends,
    applicable,
    beside,
    by_tokens,
    crossings,
    signatures,
)

from helpers.instances import equal_devices
from helpers.operators import COST, block, perceptrons
from pipeplan.core.cluster import DeviceKind, Link
from pipeplan.core.errors import InputError
from pipeplan.core.operators import BY_HEADS, BY_RING, INPUT, TOKEN, Attention, Operator, OperatorGraph, Weight
from pipeplan.core.plan import Plan
from pipeplan.costs.sharding.exchanges import Exchange
from pipeplan.costs.sharding.ring import messages, ring_time
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.io.operators_entry import operators_data
from pipeplan.io.plan_file import plan_data
from pipeplan.solve import solve

AXES = (TOKEN, "head")
ATTENTION = Operator(
    "attention", "attention", {"head": 8, TOKEN: 8}, {INPUT: AXES}, AXES, 60, forward_flops=1600,
    attention=Attention(queries=60, keys=128, heads=4, causal=True),
)  # fmt: skip


def test_attention_has_three_ways() -> None:
    """By keys, by ring, and by heads where these can be divided; what is sent and needed beside."""
    assert signatures(ATTENTION, 4, tokens=True) == (UNSPLIT, "head", TOKEN, RING, TURNED)
    assert signatures(ATTENTION, 8, tokens=True) == (UNSPLIT, "head", TOKEN, RING)
    assert signatures(ATTENTION, 4, tokens=True, context=False) == (UNSPLIT, "head")
    assert [by_tokens(ATTENTION, loop) for loop in ("head", TOKEN, TURNED, RING)] == [
        {}, {"attention": 0}, {"attention": BY_HEADS}, {"attention": BY_RING}
    ]  # fmt: skip
    gather, scatter, turn = Exchange.GATHER, Exchange.SCATTER, Exchange.TURN
    assert crossings(ATTENTION, TOKEN) == ((gather, False, 128), (gather, True, 128), (scatter, True, 128))
    assert [(kind, size) for kind, _, size in crossings(ATTENTION, TURNED)] == [
        (turn, size) for size in (188, 60, 188, 120, 188)
    ]
    assert [back for _, back, _ in crossings(ATTENTION, TURNED, has_gradient=False)] == [False, False]
    assert not crossings(ATTENTION, "head")
    assert not crossings(ATTENTION, RING)
    assert [beside(ATTENTION, loop, 4) for loop in ("head", TOKEN, RING, TURNED)] == [0, 256, 160, 124]


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


def test_slow_links_are_hidden_by_a_ring() -> None:
    """Keys that take as long as attention itself are gathered before it, or come while it runs, in less memory."""
    graph = OperatorGraph((ATTENTION,), {INPUT: 60})
    cost = replace(COST, forward=1600, backward=3200, input_gradient=3200, weight_gradient=0, workspace=0)
    link = Link(128 * 10**9 // 1050)
    own = TeamProblem(graph, cost, 0, DeviceKind("unit"), None, 1, 4, link, Ends(True, True))
    keys, ring = (own.member(((ATTENTION.name, way),)) for way in (0, BY_RING))
    assert (keys.forward, ring.forward) == (700 + 3 * 263, 263 + 2 * 263 + 200)
    assert ring.workspace < keys.workspace
    slower = replace(own, kind=DeviceKind("unit", shard_overhead=100))
    assert slower.member(((ATTENTION.name, BY_RING),)).forward == ring.forward + 4 * 100


@pytest.mark.parametrize("way", [0, BY_HEADS, BY_RING])
def test_operands_that_are_split_otherwise_are_gathered_for_attention_on_tokens(way: int) -> None:
    """A weight's columns, which have no tokens: attention on tokens needs all, and is not bound to their loop."""
    weight = Weight("wide.weight", ("f", "h"), 400)
    wide = Operator("wide", "linear", {"f": 8}, {INPUT: (TOKEN, "h")}, ("f",), 64, weights=(weight,), forward_flops=1)
    reads = replace(ATTENTION, reads={"wide": ("head",)})
    graph = OperatorGraph((wide, reads), {INPUT: 60})
    cost = replace(COST, forward=1600, backward=3200, input_gradient=1600, weight_gradient=1600, workspace=0)
    link = Link(10**9, 1)
    problem = TeamProblem(graph, cost, 400, DeviceKind("unit"), None, 1, 4, link, Ends(False, True))
    shards = (("wide.weight", 0), (ATTENTION.name, way))
    assert problem.possible(shards)
    split, whole = problem.member(shards), problem.member(shards[1:])
    assert split.forward - whole.forward == 3 * (64 // 4 + 1)
    assert split.workspace - whole.workspace == 64


def test_the_last_tokens_work_longest() -> None:
    """Of causal attention by keys, 7 of 16 squares for a team of four; a quarter by heads, or without the mask."""
    cost, kind = replace(COST, forward=1600), DeviceKind("unit")
    whole = replace(ATTENTION, attention=replace(ATTENTION.attention, causal=False))
    for operator, by_keys, expected in ((ATTENTION, 4, 700), (ATTENTION, 1, 400), (whole, 4, 400)):
        own = Rooflines(OperatorGraph((operator,), {INPUT: 60}), cost, 0, kind, None, 1)
        assert own.passes(operator, {TOKEN: 4}, by_keys)[0] == expected


def test_layers_without_tokens_have_no_parts_of_them() -> None:
    """Entries of shards for these have no effect there."""
    graph = OperatorGraph((ATTENTION,), {INPUT: 60})
    shards = (("attention", 0),)
    assert applicable(graph, shards, Ends()) == ()
    assert applicable(graph, shards, Ends(True)) == shards


def test_products_have_a_matrix() -> None:
    """Plans name a product that runs on tokens by its matrix; a sum of vectors is none."""
    gain, axes = (Weight("gain.weight", ("f",), 8),), (TOKEN, "f")
    vector = Operator("gain", "linear", {TOKEN: 10}, {INPUT: axes}, axes, 60, weights=gain)
    OperatorGraph((vector,), {INPUT: 60})
    with pytest.raises(InputError, match="a product has a matrix"):
        OperatorGraph((replace(vector, product=True),), {INPUT: 60})


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
    assert found.plan.context.products == tuple(f"l{i}.{name}.weight" for i in range(3) for name in ("wide", "narrow"))
    assert not found.plan.shards and not without.plan.context
    assert found.value < without.value
    assert "context-parallel teams of 2" in str(found)
    said = [" ".join(each.searched.not_searched) for each in (found, without)]
    assert ["(context parallelism)" in each for each in said] == [False, True]
    assert ["(even work under a causal mask)" in each for each in said] == [True, False]
    found.plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == found.plan
    assert "context" not in plan_data(without.plan)
