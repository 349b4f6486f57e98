"""Attention on meshes whose axes split its tokens: which methods there are, and what each takes."""

from dataclasses import replace

import numpy as np

from helpers.operators import COST
from pipeplan.core.cluster import DeviceKind, Link
from pipeplan.core.operators import INPUT, TOKEN, Attention, Operator, OperatorGraph
from pipeplan.core.strategies import BY_HEADS, BY_RING, AxisStrategy, Strategy
from pipeplan.costs.sharding.attention import SplitAttention, split_attention
from pipeplan.costs.sharding.batches import of_batch
from pipeplan.costs.sharding.exchanges import Exchange
from pipeplan.costs.sharding.prices import strategy_costs
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.costs.sharding.shapes import Mesh
from pipeplan.costs.sharding.strategies import strategies

AXES = (TOKEN, "head")
ATTENTION = Operator(
    "attention", "attention", {"head": 8, TOKEN: 8}, {INPUT: AXES}, AXES, 64, forward_flops=1600,
    input_gradient_flops=3200, attention=Attention(queries=64, keys=128, heads=8, causal=True),
)  # fmt: skip
HEAD, KEYS, RINGS, TURNS = (
    AxisStrategy("head"),
    AxisStrategy(TOKEN),
    AxisStrategy(TOKEN, by=BY_RING),
    AxisStrategy(TOKEN, by=BY_HEADS),
)


def attention(strategy: Strategy, sizes: tuple[int, ...], operator: Operator = ATTENTION) -> SplitAttention:
    """It on devices whose time is in proportion to operations."""
    own = Rooflines(OperatorGraph((operator,), {INPUT: 64}), COST, 0, DeviceKind("unit"), None, 1)
    found = split_attention(own, operator, strategy, sizes)
    assert found is not None
    return found


def test_ways_stand_in_order() -> None:
    """A ring is the outermost of the axes that split tokens, and the only one; heads are the innermost ones."""
    found = {strategy for strategy in strategies(ATTENTION, (2, 2)) if {entry.loop for entry in strategy} == {TOKEN}}
    assert found == {(KEYS, KEYS), (RINGS, KEYS), (RINGS, TURNS), (KEYS, TURNS), (TURNS, TURNS)}
    three = {strategy for strategy in strategies(ATTENTION, (2, 2, 2)) if {entry.loop for entry in strategy} == {TOKEN}}
    assert (RINGS, KEYS, TURNS) in three
    assert len(three) == 7
    assert (TURNS, HEAD) in strategies(ATTENTION, (4, 2))
    few = replace(ATTENTION, attention=Attention(64, 128, heads=4))
    assert not {(TURNS, TURNS), (TURNS, HEAD)} & {*strategies(few, (4, 2))}
    assert (RINGS, TURNS) in strategies(few, (4, 2))
    assert (KEYS,) not in strategies(ATTENTION, (2,), tokens=False)
    assert not any(entry.by for strategy in strategies(ATTENTION, (2,), tokens=False) for entry in strategy)


def test_a_ring_of_nodes_and_heads_inside_them() -> None:
    """On two by four devices: exchanges inside nodes, then blocks of a quarter of the heads from node to node."""
    own = attention((RINGS, TURNS), (2, 4))
    assert [(each.kind, each.axis, each.size) for each in own.exchanges()] == [
        (Exchange.TURN, 1, size // 2) for size in (192, 64, 192, 128, 192)
    ]
    assert [each.back for each in own.exchanges()] == [False, False, True, True, True]
    assert {(each.axis, each.size) for each in own.shifts()} == {(0, 128 // 4)}
    assert [each.back for each in own.shifts()] == [False, *[True] * 3]
    assert own.by_keys == 2
    assert own.beside == 5 * 16 + 2 * (64 + 128 + 64) // 8


def test_keys_of_a_node_go_round_together() -> None:
    """By ring over nodes and by keys inside: blocks are those of a node, whose last quarter is seen half."""
    own, slow = attention((RINGS, KEYS), (2, 4)), Mesh((2, 4), (Link(10**9, 500), Link(10**9)))
    assert [(each.kind, each.axis, each.size) for each in own.exchanges()] == [
        (kind, 1, 64) for kind in (Exchange.GATHER, Exchange.GATHER, Exchange.SCATTER)
    ]
    assert own.by_keys == 8
    assert own.beside == 5 * 64
    forward = 1500  # of it 7 of 15 parts for the node's own keys, 8 for those of the other one
    assert own.passes([forward, 0, 0, 0], slow)[0] == max(700, 564) + 800 + 3 * 16
    longer = own.passes([150, 0, 0, 0], slow)[0]
    assert longer == 564 + 80 + 3 * 16


def test_heads_of_other_axes_share_keys_out() -> None:
    """A device that has half of the heads gathers the keys of these, and reads no others."""
    rates = (1e18, 1e9)
    own = Rooflines(
        OperatorGraph((ATTENTION,), {INPUT: 256}), replace(COST, forward=1000), 0, DeviceKind("unit"), rates, 1
    )
    both, keys = own.passes(ATTENTION, {"head": 2, TOKEN: 4}, 4), own.passes(ATTENTION, {TOKEN: 4}, 4)
    assert keys[0] == -(-1000 * (64 + 16 + 96) // 320)
    assert both[0] == -(-1000 * (32 + 8 + 48) // 320)
    (gather, *_), (half, *_) = attention((KEYS,), (4,)).exchanges(), attention((KEYS, HEAD), (4, 2)).exchanges()
    assert (gather.size, half.size) == (128, 64)


def test_a_batch_has_the_keys_of_all_samples() -> None:
    """Operators of a batch as their sample: queries and keys are those of all of it."""
    graph = of_batch(OperatorGraph((ATTENTION,), {INPUT: 64}), 4)
    assert graph.operators[0].attention == Attention(256, 512, 8, True)


def test_what_has_no_gradient_sends_nothing_back() -> None:
    """Attention without a gradient: exchanges of the forward only."""
    graph = OperatorGraph((ATTENTION,), {INPUT: 64}, without_gradient=("attention",))
    own = Rooflines(graph, COST, 0, DeviceKind("unit"), None, 1)
    for entry in (KEYS, RINGS, TURNS):
        found = split_attention(own, ATTENTION, (entry,), (4,))
        assert found is not None
        assert not any(each.back for each in (*found.exchanges(), *found.shifts()))
    whole = split_attention(own, ATTENTION, (HEAD,), (4,))
    assert whole is None
    assert np.all(strategy_costs(own, ATTENTION, (RINGS,), Mesh((4,), (Link(10**9),))) >= 0)
