"""Strategies that are asked for by name: products follow them, devices have 1/P of all, and what is sent is known."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import prod

import pytest

from helpers.instances import equal_devices
from helpers.mesh_exchanges import BACKWARD, FORWARD, mesh_exchanges
from helpers.operators import block, dense, perceptrons
from pipeplan.analysis.judge import judge
from pipeplan.core.cluster import Link
from pipeplan.core.errors import InputError
from pipeplan.core.model import LayerCost
from pipeplan.core.operators import OperatorGraph, Weight
from pipeplan.core.strategies import NAMED_STRATEGIES, WHOLE, AxisStrategy
from pipeplan.costs.sharding.coordinates import COORDINATES, combined
from pipeplan.costs.sharding.exchanges import Exchange
from pipeplan.costs.sharding.named import NamedStrategy, follows, on_shape, shapes_of
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.costs.sharding.shapes import Mesh
from pipeplan.solve import solve
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.sharding import frontier

KIND = equal_devices(1).devices[0].kind
ROWS, WIDTHS = 32, (16, 24, 16)
BIAS = 48


def split_block() -> OperatorGraph:
    """A block whose sum of input and perceptron may have parts of the features, as captured ones."""
    graph = block()
    *others, add = graph.operators
    return replace(graph, operators=(*others, replace(add, loops={"token": 10, "feature": 8})))


@pytest.mark.parametrize("sizes", [(2, 2, 2), (4, 2, 1), (2, 1, 4), (1, 2, 4), (1, 2, 2), (2, 2, 3)])
@pytest.mark.parametrize("keeps", [False, True])
def test_cubes_send_what_is_known(sizes: tuple[int, int, int], keeps: bool) -> None:
    """Forward ((i-1) X + (w-1) W + (o-1) Y) / P, the bias with its weight; backward W moves again, X if it is not kept.

    Kept it takes X / (w o) bytes.
    """
    ((kept, named),) = on_shape("3d", sizes)
    widths = tuple(width * sizes[2] for width in WIDTHS) if 3 in sizes else WIDTHS
    graph = dense(ROWS, widths)
    biased = [replace(each, weights=(*each.weights, Weight("b", ("out",), BIAS))) for each in graph.operators]
    graph = replace(graph, operators=tuple(biased))
    end = next(named.placements(2, False))
    held, made = 0, 4 * ROWS * sum(widths[1:])
    cost = LayerCost(0, 0, 0, 0, saved=made, output=0, update=0)
    own = Rooflines(graph, cost, graph.parameters, KIND, None, 1)
    mesh = Mesh(kept, tuple(Link(10**9, 0) for _ in kept))
    problem = MeshProblem(own, mesh, end, end, named=named, keeps=keeps)
    found = frontier(problem.sharding.project(combined(("forward", "backward"), ("parameters",))), Clock(Limits()))
    strategies = problem.layer_strategies(found.choice(0))
    assert all(follows(each, strategies.operators[each.name].strategy, named) for each in graph.operators)
    expected = dict.fromkeys((FORWARD, BACKWARD), Fraction(0))
    for each, (inputs, outputs) in zip(graph.operators, pairwise(widths), strict=True):
        strategy = strategies.operators[each.name].strategy
        lengths = [(entry.loop, n) for entry, n in zip(strategy, kept, strict=True)]
        w, i, o = (prod(n for loop, n in lengths if loop == one) for one in ("row", "out", "in"))
        x, weight, y = 4 * ROWS * inputs, 4 * inputs * outputs, 4 * ROWS * outputs
        once = Fraction((i - 1) * x + (w - 1) * weight + (o - 1) * y, prod(sizes)) + Fraction((w - 1) * BIAS, i * w)
        again = Fraction((i - 1) * x * (not keeps) + (w - 1) * weight, prod(sizes)) + Fraction((w - 1) * BIAS, i * w)
        held += x // (w * o) if keeps and i > 1 else 0
        expected[FORWARD] += once
        expected[BACKWARD] += once + again
    sent = dict.fromkeys((FORWARD, BACKWARD), Fraction(0))
    for exchange in mesh_exchanges(problem, strategies):
        size, halves = kept[exchange.axis], 1 + (exchange.kind is Exchange.SUM)  # one of two maps, and one of the next
        sent[exchange.when] += halves * Fraction(exchange.size * (size - 1), size)
    assert sent == expected
    costs = dict(zip(COORDINATES, problem.sharding.evaluate(found.choice(0)) or (), strict=True))
    weights = sum(Fraction(4 * a * b, prod(sizes)) for a, b in pairwise(widths))
    assert weights < costs["parameters"] <= weights + 2 * BIAS
    assert costs["saved"] == held + Fraction(made, prod(sizes))


def test_a_plan_has_the_named_words() -> None:
    """In one node too: on as many axes as the name has, all products by it, between layers parts for every device."""
    model, cluster = perceptrons(3, (4,), split_block()), equal_devices(8)
    asked = {"teams": (8,), "depths": (1,), "micro_batches": (1,), "workers": 1}
    found = solve(model, cluster, 4, strategy="3d", **asked)
    assert found.plan.mesh == (2, 2, 2)
    assert found.value == found.bound >= solve(model, cluster, 4, **asked).value
    assert "--strategy 3d" in found.searched.as_text()
    for _, strategies in found.plan.strategies:
        for name in ("wide", "narrow"):
            rows, *others = strategies.operators[name].strategy
            assert rows == AxisStrategy("sample", True) and {each.loop for each in others} == {"in", "out"}
    (_, first), (_, second), _ = found.plan.strategies
    assert first.output == second.input and WHOLE not in first.output
    judged = judge(
        model, cluster, 4, stages=(3,), micro_batches=1, team=8, strategy="3d", schedule=found.plan.schedule.family
    )
    assert judged.plan.mesh == (2, 2, 2)
    assert judged.plan.strategies == found.plan.strategies


@pytest.mark.parametrize(("name", "team", "shape"), [("2d", 4, (2, 2)), ("2.5d", 8, (2, 2, 2)), ("3d", 4, (2, 2))])
def test_every_name_has_plans(name: str, team: int, shape: tuple[int, ...]) -> None:
    """2-D, 2.5-D, and cubes with an axis of one device where the team has no third factor."""
    asked = {"teams": (team,), "depths": (1,), "micro_batches": (1,), "workers": 1}
    plan = solve(perceptrons(2, (4,), split_block()), equal_devices(team), 4, strategy=name, **asked).plan
    assert plan.mesh == shape


def test_shapes_of_names() -> None:
    """As many axes as a strategy can split; an axis of one device of a cube is left out; other shapes are refused."""
    assert {sizes for sizes, _ in shapes_of("3d", [(8,), (2, 4), (2, 2, 2)])} == {(2, 2, 2)}
    assert [own.entries for _, own in shapes_of("3d", [(4,), (2, 2)])] == [("wi", "wo"), ("io", "oi")]
    assert not shapes_of("3d", [(3,)]) and not shapes_of("2d", [(2, 2, 2)])
    assert {len(entries) for entries in NAMED_STRATEGIES.values()} == {2, 3}
    for name, sizes in (("3d", (8,)), ("2d", (2, 2, 2)), ("3d", (1, 1, 8)), ("2.5d", (1, 2, 2))):
        with pytest.raises(InputError, match=f"strategy {name} splits meshes of"):
            on_shape(name, sizes)


def test_what_passes_between_named_layers_has_as_few_features_in_parts_as_can_be() -> None:
    """Rows are samples, or tokens too: of three dimensions the first two. Of a cube, i and o may be exchanged."""
    flat = NamedStrategy.of("2d", "wo")
    assert [*flat.placements(3, True)] == [(0, 2), (1, 2)]
    assert [*flat.placements(3, False)] == [*flat.placements(3, True)][:1]
    assert [*flat.placements(2, True)] == [(0, 1)]
    cubes = {entries: NamedStrategy.of("3d", entries) for entries in ("wio", "wi", "wo", "io")}
    assert {entries: cube.between for entries, cube in cubes.items()} == {
        "wio": ("rrf", "rfr"),
        "wi": ("rr",),
        "wo": ("rr",),
        "io": ("rf", "fr"),
    }
    assert {cube.entries for cube in cubes.values()} == {("wio", "woi"), ("wi", "wo"), ("io", "oi")}
