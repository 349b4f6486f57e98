"""Whole models on meshes: layers are one graph, frontiers are those of all choices, and what products send."""

import random
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from itertools import pairwise
from math import inf, prod

import numpy as np
import pytest

from helpers.mesh_choices import drawn_choice
from helpers.operators import COST, block, dense, linear, pair, perceptrons
from helpers.shardings import every_choice, pareto
from pipeplan.analysis.sharding.question import step_matrix
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.errors import InputError
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance, Tie, Work
from pipeplan.core.operators import INPUT, SAMPLE, Operator, OperatorGraph, Weight
from pipeplan.core.strategies import UNSPLIT, AxisStrategy, Placements, Strategy
from pipeplan.costs.sharding.clusters import mesh_of, meshes_of
from pipeplan.costs.sharding.coordinates import COORDINATES
from pipeplan.costs.sharding.frontiers import over_meshes
from pipeplan.costs.sharding.joined import joined_layers
from pipeplan.costs.sharding.prices import tied_costs, weight_exchange, weight_parts
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.products import Product, products
from pipeplan.costs.sharding.redistributions import path
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.costs.sharding.shapes import Mesh, mesh_on
from pipeplan.costs.sharding.strategies import made, needed, ungathered
from pipeplan.costs.sharding.unsplit import require_divided, undivided, unsplit
from pipeplan.costs.sharding.volumes import IN, OUT, ROW, Algorithm, LinearMap, received, volume
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.sharding import frontier

KIND = DeviceKind("unit", peak={"float32": 10**12}, bandwidth=10**11)
NOTHING = LayerCost(0, 0, 0, 0, saved=0, output=0)


def model_of(graphs: list[OperatorGraph], cost: LayerCost | None = None, batch: int = 2) -> Model:
    """Layers one behind another; with a cost profiles of it, else estimates."""
    kinds = {f"kind {graphs.index(graph)}": graph for graph in graphs}
    layers = tuple(
        Layer(
            f"l{i}",
            graph.parameters,
            (f"l{i - 1}",) if i else (),
            Work(*(sum(getattr(o, f"{name}_flops") for o in graph.operators)
                   for name in ("forward", "input_gradient", "weight_gradient")), 80, 700),
            operators=f"kind {graphs.index(graph)}",
        )
        for i, graph in enumerate(graphs)
    )  # fmt: skip
    origin = Provenance("imported", "test")
    profiles = (Profile("unit", batch, (cost,) * len(layers), origin),) if cost else ()
    return Model("chain", layers, profiles, operators=kinds)


def _one(graphs: list[OperatorGraph], batch: int) -> OperatorGraph:
    """The layers as one by hand: the first axis of all tensors is that of the samples."""
    operators, source = [], INPUT
    for number, graph in enumerate(graphs):
        name = {INPUT: source} | {each.name: f"l{number}/{each.name}" for each in graph.operators}
        operators += [
            Operator(
                name[each.name],
                each.kind,
                {SAMPLE: batch, **each.loops},
                {name[own]: (SAMPLE, *row) for own, row in each.reads.items()},
                (SAMPLE, *each.makes),
                batch * each.output,
                each.kept,
                each.weights,
                weight_gradient_flops=batch * each.weight_gradient_flops,
            )
            for each in graph.operators
        ]
        source = operators[-1].name
    return OperatorGraph(tuple(operators), {INPUT: 80 * batch}, (), (INPUT,))


@pytest.mark.parametrize("seed", range(8))
def test_layers_are_one_graph(seed: int) -> None:
    """All random choices of joined layers send what they send where the same operators are one layer."""
    draw = random.Random(seed)
    graphs = [draw.choice((pair(), single(draw)))]
    graphs += [draw.choice((pair(), block(), single(draw))) for _ in range(draw.randint(1, 3))]
    sizes = draw.choice(((2,), (4,), (2, 2)))
    mesh = Mesh(sizes, (Link(10**9),) * len(sizes))
    joined = MeshProblem(joined_layers(model_of(graphs, NOTHING), KIND, 2), mesh)
    graph = _one(graphs, 2)
    other = MeshProblem(Rooflines(graph, NOTHING, graph.parameters, KIND, None, 1), mesh)
    assert joined.signatures == other.signatures
    assert joined.sums == other.sums
    assert joined.copied == other.copied
    found = 0
    for _ in range(400):
        choice = drawn_choice(joined, draw)
        costs = joined.sharding.evaluate(choice)
        assert costs == other.sharding.evaluate(choice)
        found += costs is not None
    assert found


def single(draw: random.Random) -> OperatorGraph:
    """A linear map."""
    return OperatorGraph((linear("map", INPUT, 8, 8, draw.choice((0, 8))),), {INPUT: 80})


@pytest.mark.parametrize("seed", range(10))
def test_the_frontier_of_a_chain_is_that_of_all_choices(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random layers, placements and links: all points, their choices, and both ends, with bounds and without."""
    monkeypatch.setattr(import_module("pipeplan_formulations.sharding.frontier"), "MANY", 1 if seed % 2 else 99)
    monkeypatch.setattr(import_module("pipeplan_formulations.sharding.bounded"), "LARGE", 1.0)
    draw = random.Random(seed)
    sizes = (2,) if seed % 3 else (2, 2)
    graphs = [block()] if seed == 4 else [single(draw) for _ in range(draw.randint(2, 4 if len(sizes) == 1 else 2))]
    links = tuple(Link(draw.choice((10**7, 10**9)), draw.choice((0, 40))) for _ in sizes)
    cost = replace(COST, update=draw.choice((0, 900))) if draw.random() < 0.5 else None
    problem = MeshProblem(joined_layers(model_of(graphs, cost), KIND, 2, "adam"), Mesh(sizes, links))
    sharding = problem.sharding.project(step_matrix("float32", "adam"))
    _, costs = every_choice(sharding)
    found = frontier(sharding, Clock(Limits()))
    assert found.points.tolist() == pareto(costs)
    assert found.points.min(axis=0).tolist() == costs.min(axis=0).tolist()
    assert [sharding.evaluate(found.choice(k)) for k in range(len(found.points))] == list(
        map(tuple, found.points.tolist())
    )


def test_layouts_between_layers_are_chosen() -> None:
    """Free placements are never worse than whole ones, and better where rows stay split."""
    graph = dense(16, (16, 16))
    mesh = Mesh((4,), (Link(10**9, 10),))
    row = step_matrix("float32", "sgd")[:1]
    joined = MeshProblem(joined_layers(model_of([graph] * 3, NOTHING, 1), KIND, 1), mesh)
    free = frontier(joined.sharding.project(row), Clock(Limits())).points[0, 0]
    alone = MeshProblem(Rooflines(graph, NOTHING, graph.parameters, KIND, None, 1), mesh)
    ((whole,),) = frontier(alone.sharding.project(row), Clock(Limits())).points.tolist()
    assert free <= 3 * whole
    inside = replace(alone, output=(0,))
    split = [own for own in inside.signatures[0] if own.held == (0,)]
    assert split


def test_equal_layers_share_tables() -> None:
    """Twenty layers have as many different tables as eight."""
    mesh = Mesh((2, 2), (Link(10**9), Link(10**10)))

    def tables(count: int) -> int:
        problem = MeshProblem(joined_layers(perceptrons(count, (1, 2), block()), KIND, 2), mesh, keeps=False).sharding
        assert len(problem.costs) == 5 * count + 2 * (count - 1)
        return len({id(each) for each in (*problem.costs, *(edge.costs for edge in problem.edges))})

    assert tables(8) == tables(20)


def test_memory_is_weights_gradients_state_and_what_is_kept() -> None:
    """Bytes per byte of weights: two more halves of master copy and moments in 16 bits."""
    for dtype, optimizer, factor in (
        ("float32", "sgd", 2), ("float32", "momentum", 3), ("float32", "adam", 4), ("bfloat16", "adam", 8),
        ("bfloat16", "sgd", 4), ("float64", "adam", 4),
    ):  # fmt: skip
        assert step_matrix(dtype, optimizer).tolist() == [[1, 1, 0, 0, 1, 1, 0, 0], [0] * 6 + [factor, 1]]


@pytest.mark.parametrize("seed", range(6))
def test_products_receive_their_volumes(seed: int) -> None:
    """Random choices of two linear maps: numbers and lower bounds are those of the volumes."""
    draw = random.Random(seed)
    sizes = draw.choice(((4,), (2, 3), (2, 2, 2)))
    rows, width, inner = (prod(sizes) ** 2 * draw.choice((1, 2)) for _ in range(3))
    graph = dense(rows, (width, inner, width))
    own = Rooflines(graph, NOTHING, graph.parameters, KIND, None, 1)
    problem = MeshProblem(own, Mesh(sizes, (Link(10**9),) * len(sizes)), keeps=False)
    checked = 0
    while checked < 10:
        choice = [draw.randrange(len(each)) for each in problem.signatures]
        if problem.sharding.evaluate(choice) is None:
            continue
        first, second = (problem.signatures_of(choice)[name] for name in ("fc0", "fc1"))
        to = {"row": ROW, "in": IN, "out": OUT}
        strategy = tuple(entry._replace(loop=to.get(entry.loop, entry.loop)) for entry in second.strategy)
        sent = volume(LinearMap(rows, inner, width), strategy, sizes, first.held, second.held)
        _, found = products(problem, choice, 4)
        assert (found.rows, found.inputs, found.outputs) == (rows, inner, width)
        assert found.received == pytest.approx(float(sent.forward))
        assert found.least == pytest.approx(sent.least)
        if sent.least:
            assert found.over_least == pytest.approx(sent.over_least)
            assert found.received >= found.least - 1e-6
        checked += 1


def test_products_receive_what_their_own_tensors_need() -> None:
    """Of random maps, whose tensors have as many bytes and unlike parts: the numbers of all steps on fastest paths."""
    draw, sizes, side = random.Random(8), (2, 3), 36
    mesh, moved = Mesh(sizes, (Link(10**9), Link(7 * 10**8, 3))), 0

    def numbers(problem: MeshProblem, name: str, source: Placements, target: Placements) -> Fraction:
        steps = path(source, target, 4 * side * side, mesh, problem.tensors[name].parts)
        total = Fraction(0)
        for before, after in pairwise((source, *(steps or ()))):
            [axis] = (axis for axis in range(2) if before[axis] != after[axis])
            others = prod(n for n, k, at in zip(sizes, before, range(2), strict=True) if k >= 0 and at != axis)
            total += received(side * side, sizes, Algorithm.RING, axis, before[axis], after[axis], others)
        return total

    for _ in range(12):
        plain = dense(side, (side, side, side, side))
        own = [replace(each, loops=dict(draw.sample([*each.loops.items()], 2))) for each in plain.operators]
        graph = replace(plain, operators=tuple(own))
        problem = MeshProblem(Rooflines(graph, NOTHING, graph.parameters, KIND, None, 1), mesh, keeps=False)
        for _ in range(4):
            choice = [draw.randrange(len(each)) for each in problem.signatures]
            if problem.sharding.evaluate(choice) is None:
                continue
            chosen = problem.signatures_of(choice)
            for each, found in zip(own, products(problem, choice, 4), strict=True):
                (source,), (strategy, held) = each.reads, chosen[each.name]
                wanted = numbers(problem, each.name, made(each, strategy), held)
                if source in chosen:
                    wanted += numbers(problem, source, chosen[source].held, needed(each, strategy, source))
                [weight] = each.weights
                gathered = weight_parts(weight, ungathered(strategy), sizes), weight_parts(weight, strategy, sizes)
                wanted += Fraction(side * side, gathered[0]) - Fraction(side * side, gathered[1])
                assert found.received == pytest.approx(float(wanted))
                moved += wanted > 0
    assert moved >= 20


def test_products_are_those_of_a_matrix() -> None:
    """A bias beside it, or a norm behind it, changes nothing; what is received is compared with what must be."""
    graphs = [OperatorGraph((linear("map", INPUT, 8, 16, bias),), {INPUT: 80}) for bias in (0, 16)]
    plain, biased = (
        MeshProblem(Rooflines(graph, NOTHING, graph.parameters, KIND, None, 1), Mesh((2,), (Link(10**9),)))
        for graph in graphs
    )
    for k, (strategy, _) in enumerate(plain.signatures[0]):
        of_bias = [own.strategy for own in biased.signatures[0]].index(strategy)
        assert products(biased, [of_bias], 1) == products(plain, [k], 1) != ()
    assert [Product("p", 1, 1, 1, *row).over_least for row in ((6.0, 2.0), (5.0, 0.0), (0.0, 0.0))] == [3, inf, None]


def test_joined_layers_keep_what_has_no_gradient() -> None:
    """The batch, and of each layer the tensors that it says have none; never what a layer before it makes."""
    graph = replace(pair(), without_gradient=("act", INPUT))
    assert {*joined_layers(model_of([graph, graph], NOTHING), KIND, 2).graph.without_gradient} == {
        INPUT,
        "l0/act",
        "l1/act",
    }


def test_inputs_with_other_axes_are_read_whole() -> None:
    """Two axes are passed on to a layer that knows one of them: it reads both whole, and keeps its own loops."""
    wide, act, narrow = pair().operators
    flat = replace(wide, reads={INPUT: ("in",)}, makes=("out",), loops={"in": 8, "out": 32})
    act = replace(act, reads={"wide": ("feature",)}, makes=("feature",))
    other = replace(pair(), operators=(flat, act, replace(narrow, reads={"act": ("in",)}, makes=("out",))))
    joined = joined_layers(model_of([pair(), other], NOTHING), KIND, 2)
    (reading,) = (each for each in joined.graph.operators if each.name == "l1/wide")
    assert [len(row) for row in reading.reads.values()] == [len(joined.of["l0/narrow"].operator.makes)]
    assert not {loop for row in reading.reads.values() for loop in row} & {*reading.loops}
    (before,) = (each for each in joined.graph.operators if each.name == "l0/wide")
    assert before.reads[INPUT][-1] == "in" and {"in", "out"} <= {*before.loops}


def test_shared_weights_lie_alike() -> None:
    """The first layer's and the last one's weight have one placement; their gradient is summed for both at once."""
    weight = Weight("map.weight", ("out", "in"), 64, shared=True)
    first, last = (
        OperatorGraph((replace(linear("map", INPUT, 8, 8), weights=(weight,)),), {INPUT: 80}) for _ in range(2)
    )
    model = model_of([first, single(random.Random(0)), last], COST)
    layers = (*model.layers[:2], replace(model.layers[2], parameters=0))
    tied = replace(model, layers=layers, ties=(Tie(("l0", "l2"), 64),))
    mesh = Mesh((2,), (Link(10**9),))
    problem = MeshProblem(joined_layers(tied, KIND, 2), mesh)
    assert len(problem.shared) == 1
    plain = MeshProblem(joined_layers(model, KIND, 2), mesh)
    assert not plain.shared
    found = frontier(problem.sharding.project(step_matrix("float32", "sgd")), Clock(Limits()))
    for k in range(len(found.points)):
        strategies = problem.signatures_of(found.choice(k))
        splits = [
            {
                entry.loop if entry.loop in ("in", "out") or entry.gathers else ""
                for entry in strategies[f"{name}/map"].strategy
            }
            for name in ("l0", "l2")
        ]
        assert splits[0] == splits[1]


def test_a_shared_weight_is_summed_along_the_axes_of_both_uses() -> None:
    """Each use has parts along another axis: one sum along both takes 32 + 32 + 32 ns, the first use's own is 64 ns."""
    weight = Weight("table", ("out", "in"), 64, shared=True)
    use = replace(linear("map", INPUT, 8, 8), weights=(weight,), loops={"token": 10, "out": 8, "in": 8})
    split, whole = AxisStrategy("token"), AxisStrategy(UNSPLIT)
    mesh = Mesh((2, 2), (Link(10**9),) * 2)

    def more(one: Strategy, other: Strategy) -> int:
        return int(tied_costs(weight, weight, ((use, one), (use, other)), mesh)[COORDINATES.index("summed")])

    assert more((split, whole), (whole, split)) == 96 - 64
    assert more((split, whole), (split, whole)) == more((split, split), (whole, split)) == 0


def test_weights_are_divided_by_their_own_axes_only() -> None:
    """Of two weights that are summed along one axis each, scattering one leaves the other whole: 32 and 16 ns."""
    weights = Weight("table", ("out", "in"), 64), Weight("places", ("token",), 32)
    use = replace(linear("map", INPUT, 8, 8), weights=weights, loops={"token": 10, "out": 8, "in": 8})
    mesh = Mesh((2, 2), (Link(10**9),) * 2)
    assert weight_exchange(use, (AxisStrategy("token"), AxisStrategy("out")), mesh, False) == 32 + 16


def test_layers_without_operators_are_whole_and_named() -> None:
    """A layer that nothing is known about runs on every device; the time that an even split would save is named."""
    model = perceptrons(3)
    layers = (model.layers[0], replace(model.layers[1], operators=""), model.layers[2])
    joined = joined_layers(replace(model, layers=layers), KIND, 2)
    (found,) = unsplit(joined.of, 4)
    assert found.names == ("l1/layer",)
    assert found.time == 2 * COST.forward + COST.backward
    assert found.lost == found.time - found.time // 4
    assert found.parameters == layers[1].parameters
    problem = MeshProblem(joined, Mesh((4,), (Link(10**9),)))
    best = frontier(problem.sharding.project(step_matrix("float32", "sgd")), Clock(Limits()))
    known = MeshProblem(joined_layers(model, KIND, 2), problem.mesh)
    other = frontier(known.sharding.project(step_matrix("float32", "sgd")), Clock(Limits()))
    assert best.points[0, 0] > other.points[0, 0]
    assert not unsplit(joined_layers(model, KIND, 2).of, 4)


def test_lengths_that_an_axis_does_not_divide() -> None:
    """They are named with the nearest size; an axis that divides none of them is refused."""
    joined = joined_layers(perceptrons(2), KIND, 2)
    found = undivided(joined.of, (4,))
    assert [(own.loop, own.parts, own.nearest) for own in found] == [(SAMPLE, 2, 2)]
    assert not undivided(joined.of, (2, 2))
    with pytest.raises(InputError, match=r"axis 1 .* 3 devices.* 2 samples.* 8 along 'in'.* are 2 and 4"):
        require_divided(joined.of, (2, 3))


def test_meshes_of_a_cluster() -> None:
    """All shapes that nodes divide; others are refused with one that fits."""
    nodes = (Node(("unit",) * 4, Link(10**10)),) * 2
    cluster = Cluster("two", {"unit": KIND}, nodes, Link(10**9))
    assert [mesh.sizes for mesh in meshes_of(cluster)] == [(8,), (2, 4), (4, 2)]
    assert mesh_of(cluster, (2, 4)).links[1] == Link(10**10)
    for sizes, text in (
        ((4, 4), "16 devices, and 'two' has 8.* as in 2 x 4, or name a larger"),
        ((2, 2), "4 devices, and 'two' has 8: .* as in 4 x 2; or name a cluster of 4"),
        ((8, 1), "2 devices or more"),
    ):
        with pytest.raises(InputError, match=text):
            mesh_of(cluster, sizes)
    six = Cluster("six", {"unit": KIND}, (Node(("unit",) * 3, Link(10**10)),) * 2, Link(10**9))
    assert [mesh.sizes for mesh in meshes_of(six)] == [(6,), (2, 3)]
    with pytest.raises(InputError, match=r"does not fit nodes of 3 devices: .* as in 2 x 3"):
        mesh_of(six, (3, 2))
    unlike = Cluster("unlike", {"unit": KIND}, (*nodes, Node(("unit",), Link())), Link(10**9))
    with pytest.raises(InputError, match="have 1, 4, 4 devices"):
        meshes_of(unlike)
    mixed = Cluster("mixed", {name: DeviceKind(name) for name in "ab"}, (Node(("a", "b"), Link()),))
    with pytest.raises(InputError, match="has a, b;"):
        mesh_of(mixed, (2,))
    with pytest.raises(InputError, match="1"):
        meshes_of(Cluster.uniform(1, KIND))


def test_the_best_of_all_meshes() -> None:
    """The union of the frontiers of three shapes without what another shape beats."""
    joined = joined_layers(perceptrons(3, (1, 2), block()), KIND, 2)
    matrix = step_matrix("float32", "sgd")
    problems = [
        MeshProblem(joined, mesh_on(sizes, 4, Link(10**9, 20), Link(10**8, 60))) for sizes in ((8,), (2, 4), (4, 2))
    ]
    found = over_meshes(problems, matrix, Clock(Limits()))
    every = [frontier(problem.sharding.project(matrix), Clock(Limits())).points for problem in problems]
    assert [list(point.costs) for point in found] == pareto(np.concatenate(every))
    for point in found[:: max(1, len(found) // 5)]:
        assert point.problem.sharding.project(matrix).evaluate(point.choice) == point.costs
