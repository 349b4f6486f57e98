"""Strategies of layers of which the parts of weights are given."""

import random
from dataclasses import replace

import numpy as np
import pytest

from helpers.operators import attention_block, block, pair
from pipeplan.core.cluster import DeviceKind, Link
from pipeplan.core.grouped_axis import GroupedAxis
from pipeplan.core.model import LayerCost
from pipeplan.core.operators import TOKEN, OperatorGraph
from pipeplan.core.strategies import BY_HEADS, BY_KEYS, BY_RING, LayerStrategies
from pipeplan.costs.sharding.coordinates import COORDINATES
from pipeplan.costs.sharding.given import GivenSplit, given_strategies, usual_rooflines
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.costs.sharding.shapes import Mesh
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.sharding import frontier

LINK = Link(10**9, 3)
COLUMNS, ROWS = {"wide.weight": 0}, {"narrow.weight": 1}


def found(graph: OperatorGraph, given: GivenSplit, devices: int = 2) -> LayerStrategies | None:
    """The strategies of a layer on a usual device."""
    return given_strategies(graph, given, devices, usual_rooflines(graph, 2), LINK)


def loops(strategies: LayerStrategies | None) -> dict[str, str]:
    """The loop of each operator."""
    assert strategies is not None
    return {name: strategy[0].loop for name, (strategy, _) in strategies.operators.items()}


@pytest.mark.parametrize("seed", range(20))
def test_what_words_split_is_enough_to_find_them(seed: int) -> None:
    """From weights, ends and methods of attention strategies follow that split exactly these, and take no more time."""
    draw = random.Random(seed)
    graph = draw.choice((pair(), block(), attention_block(8, 8, draw.random() < 0.5)))
    cost = LayerCost(900, 2000, 900, 1100, saved=500, output=80, update=60)
    own = Rooflines(graph, cost, graph.parameters, DeviceKind("unit"), draw.choice((None, (1e9, 1e9))), 2)
    ends = ((0,) if draw.random() < 0.6 and any(TOKEN in each.loops for each in graph.operators) else () for _ in "io")
    asked = dict(zip(("input", "output"), ends, strict=True))
    split, mesh = any(asked.values()), Mesh((2,), (LINK,))
    problem = MeshProblem(own, mesh, **asked, tokens=split, gathers=False, scatters=split, keeps=False)
    prices = np.array([[draw.randrange(1, 9) for _ in COORDINATES] for _ in range(2)], np.int64)
    points = frontier(problem.sharding.project(prices), Clock(Limits()))
    strategies = problem.layer_strategies(points.choice(draw.randrange(len(points.points))))
    given = _given(graph, strategies, **{name: bool(placements) for name, placements in asked.items()})
    again = given_strategies(graph, given, 2, own, LINK)
    assert again is not None
    assert _given(graph, again, given.input, given.output) == given
    assert _time(own, mesh, again) <= _time(own, mesh, strategies)


def _given(graph: OperatorGraph, strategies: LayerStrategies, input: bool, output: bool) -> GivenSplit:
    """What strategies split of the weights, and run on parts of the tokens."""
    weights, products, attention, number = {}, set[str](), {}, 0
    for each in graph.operators:
        (entry,) = strategies.operators[each.name].strategy
        for weight in each.weights:
            if entry.loop in weight.loops:
                weights[weight.name] = weight.loops.index(entry.loop)
            elif each.product and entry.loop == TOKEN:
                products.add(weight.name)
        if each.attention is not None:
            if entry.loop == TOKEN:
                attention[number] = entry.by or BY_KEYS
            number += 1
    return GivenSplit(weights, frozenset(products), attention, input, output)


def _time(own: Rooflines, mesh: Mesh, strategies: LayerStrategies) -> int:
    problem = MeshProblem(own, mesh, strategies.input, strategies.output, only=strategies).sharding
    costs = problem.evaluate((0,) * len(problem.costs))
    assert costs is not None
    of = dict(zip(COORDINATES, costs, strict=True))
    return of["forward"] + of["backward"]


def test_columns_and_rows_are_megatrons() -> None:
    """The pair is split by columns, then by rows, what is between them along the features; all else is whole."""
    assert loops(found(pair(), GivenSplit(COLUMNS | ROWS))) == {"wide": "out", "act": "feature", "narrow": "in"}
    assert loops(found(block(), GivenSplit(COLUMNS | ROWS)))["norm"] == ""
    split = found(block(), GivenSplit(COLUMNS | ROWS, input=True, output=True))
    assert loops(split)["norm"] == loops(split)["add"] == TOKEN
    assert split is not None
    assert (split.input, split.output) == ((0,), (0,))


@pytest.mark.parametrize("method", [BY_KEYS, BY_RING, BY_HEADS])
def test_attention_and_products_run_on_tokens_where_it_is_said(method: str) -> None:
    """Attention in the given way, and the products that are named; others gather all tokens."""
    graph = attention_block(8, 8)
    given = GivenSplit({}, frozenset({"query.weight", "out.weight"}), {0: method}, True, True)
    strategies = found(graph, given)
    assert strategies is not None
    of = loops(strategies)
    assert [of[name] for name in ("query", "attention", "out", "key", "value")] == [TOKEN] * 3 + [""] * 2
    assert (strategies.operators["attention"].strategy[0].by or BY_KEYS) == method


@pytest.mark.parametrize(
    "weights",
    [{"wide.weight": 0}, {"wide.weight": GroupedAxis(0, (1, 1)), "wide.bias": GroupedAxis(0, (1, 1))}],
    ids=["a bias stays whole", "in groups"],
)
def test_weights_that_no_loop_splits_like_that_are_whole_in_the_words(weights: dict[str, int]) -> None:
    """The operator then runs whole, and the answer says which weights are split."""
    wide, *others = pair().operators
    bias = replace(wide.weights[0], name="wide.bias", loops=("out",))
    graph = replace(pair(), operators=(replace(wide, weights=(*wide.weights, bias)), *others))
    given = GivenSplit({**weights, **ROWS})
    assert loops(found(graph, given))["wide"] == ""
    assert given.splits(graph, 2) == {"narrow.weight"}
    both = GivenSplit({"wide.weight": 0, "wide.bias": 0})
    assert loops(found(graph, both))["wide"] == "out"
    assert loops(found(graph, both, 5))["wide"] == "", "five devices do not divide it"


def test_a_bias_that_is_whole_may_stand_beside_rows_of_its_matrix() -> None:
    """It lacks the loop along which the matrix is split; beside columns it would have to be split like these."""
    *others, narrow = pair().operators
    bias = replace(narrow.weights[0], name="narrow.bias", loops=("out",))
    narrow = replace(narrow, weights=(*narrow.weights, bias))
    assert loops(found(replace(pair(), operators=(*others, narrow)), GivenSplit(COLUMNS | ROWS)))["narrow"] == "in"
    by = [{"narrow.weight": 1}, {"narrow.weight": 0}, {"narrow.bias": 0}, {"narrow.weight": 1, "narrow.bias": 0}, {}]
    assert [GivenSplit(each).loop(narrow, 2) for each in by] == ["in", None, None, None, ""]


def test_what_cannot_be_is_none() -> None:
    """Attention is to exchange tokens for heads, which the devices do not divide."""
    assert found(attention_block(6, 8), GivenSplit({}, frozenset(), {0: BY_HEADS}, True, True), 4) is None
