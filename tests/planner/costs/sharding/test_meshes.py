"""Layers on meshes: one axis is a team, costs are those of the volumes, and what is chosen where."""

import random
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from helpers.mesh_choices import drawn_choice
from helpers.mesh_play import SIDE, Play, played
from helpers.operators import dense, linear
from helpers.quick import QUICK, rarely
from pipeplan.core.cluster import DeviceKind, Link
from pipeplan.core.model import LayerCost
from pipeplan.core.operators import INPUT, Operator, OperatorGraph, Weight
from pipeplan.core.strategies import PARTIAL, WHOLE, AxisStrategy, Signature
from pipeplan.costs.sharding.coordinates import COORDINATES, combined
from pipeplan.costs.sharding.frontiers import over_meshes
from pipeplan.costs.sharding.named import three_dimensional
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.costs.sharding.shapes import Mesh, factorisations, mesh_on
from pipeplan.costs.sharding.strategies import strategies
from pipeplan.costs.sharding.teams import Teams
from pipeplan.costs.sharding.volumes import LinearMap, volume
from pipeplan.io.load import load_cluster, load_model
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.sharding import frontier

KIND = DeviceKind("unit")
NOTHING = LayerCost(0, 0, 0, 0, saved=0, output=0)


def points(problem: MeshProblem, matrix: np.ndarray) -> list[list[int]]:
    """The Pareto set of a problem's choices."""
    found: list[list[int]] = frontier(problem.sharding.project(matrix), Clock(Limits())).points.tolist()
    return found


@pytest.mark.parametrize("seed", range(12))
def test_linear_maps_send_their_volumes(seed: int) -> None:
    """All strategies on random meshes: at a number a nanosecond, times are the numbers that are received."""
    draw = random.Random(seed)
    sizes = tuple(draw.choice((2, 3, 4)) for _ in range(draw.randint(1, 3)))
    linear = LinearMap(*(draw.choice((1, 2, 5)) * prod(sizes) ** 2 for _ in range(3)))
    arrives, leaves = (tuple(draw.choice((WHOLE, 0, 1)) for _ in sizes) for _ in range(2))
    operator = linear.operator
    graph = OperatorGraph((operator,), {INPUT: linear.rows * linear.inputs})
    own = Rooflines(graph, NOTHING, graph.parameters, KIND, None, 1)
    problem = MeshProblem(own, Mesh(sizes, (Link(10**9, 0),) * len(sizes)), arrives, leaves, keeps=False)
    for k, (strategy, held) in enumerate(problem.signatures[0]):
        costs = dict(zip(COORDINATES, problem.sharding.evaluate((k,)) or (), strict=True))
        sent = volume(linear, strategy, sizes, arrives, leaves, keep=False)
        assert (costs["forward"], costs["backward"], costs["summed"]) == (sent.forward, sent.backward, sent.step)
        assert costs["backward"] == costs["input_gradient"] + costs["weight_gradient"]
        assert (costs["parameters"], held) == (sent.weight, leaves)
    assert {strategy for strategy, _ in problem.signatures[0]} == set(strategies(operator, sizes))


@pytest.mark.parametrize("sizes", [(2,), (3, 2), (2, 2), pytest.param((2, 2, 3), marks=pytest.mark.slow)])
def test_random_choices_cost_what_devices_receive(sizes: tuple[int, ...]) -> None:
    """Choices are played with numbers: blocks are where placements say, products right, costs what is sent."""
    draw, axes, size = random.Random(prod(sizes)), ("row", "feature"), SIDE**2
    loops = {"row": SIDE, "feature": SIDE}
    maps = {"a": INPUT, "b": "a", "d": "a", "e": "c"}
    operators = {
        name: Operator(
            name, "linear", {"row": SIDE, "in": SIDE, "out": SIDE}, {source: ("row", "in")}, ("row", "out"), size,
            weights=(Weight(f"{name}.weight", ("out", "in"), size),),
        )
        for name, source in maps.items()
    }  # fmt: skip
    operators["c"] = Operator("c", "sum", loops, {INPUT: axes, "b": axes, "d": axes}, axes, size)
    mesh = Mesh(sizes, (Link(10**9),) * len(sizes))
    play, possible, wanted = Play(sizes), 0, 10 if len(sizes) < 3 else 2
    for _ in range(60):
        if possible == wanted:
            break
        arrives, leaves = (tuple(draw.choice((WHOLE, 0, 1)) for _ in sizes) for _ in range(2))
        ends = draw.choice((("e",), ("d", "e")))
        graph = OperatorGraph(tuple(operators[name] for name in ("a", "b", "d", "c", "e")), {INPUT: size}, ends)
        own = Rooflines(graph, NOTHING, graph.parameters, KIND, None, 1)
        problem = MeshProblem(own, mesh, arrives, leaves)
        choice = drawn_choice(problem, draw)
        costs, strategies = problem.sharding.evaluate(choice), problem.layer_strategies(choice)
        entries = {
            name: tuple((entry.loop, entry.gathers) for entry in each.strategy)
            for name, each in strategies.operators.items()
        }
        held = {INPUT: arrives, **{name: each.held for name, each in strategies.operators.items()}}
        found = played(play, graph, entries, held, strategies.sums, strategies.copies)
        assert (costs is None) == (found is None)
        if costs is not None and found is not None:
            possible += 1
            of = dict(zip(COORDINATES, costs, strict=True))
            assert (of["forward"], of["backward"], of["summed"]) == (found.forward, found.backward, found.step)
    assert possible == wanted


def test_three_dimensions_are_chosen_where_weights_are_split() -> None:
    """Square maps of as many rows, on 4 x 4 x 4: of strategies that keep 1/64 of the weights the fastest swap roles."""
    width, side, end = 256, 4, (0, 0, 1)
    graph = dense(width, (width,) * 5)
    own = Rooflines(graph, NOTHING, graph.parameters, KIND, None, 1)
    links = (Link(4 * 10**9, 0),) * 3
    matrix = combined(("forward", "backward", "summed"), ("parameters",))
    problem = MeshProblem(own, Mesh((side,) * 3, links), end, end)
    found = frontier(problem.sharding.project(matrix), Clock(Limits()))
    least, parameters = found.points[-1].tolist()
    assert parameters == graph.parameters // side**3
    names = [
        [entry.loop for entry in each.strategy]
        for each in problem.signatures_of(found.choice(len(found.points) - 1)).values()
    ]
    assert names == [["row", "out", "in"], ["row", "in", "out"]] * 2
    cube = volume(
        LinearMap(width, width, width), three_dimensional((side,) * 3).strategy, (side,) * 3, end, (0, 1, 0), False
    )
    assert least <= 4 * cube.total
    for other in (replace(problem, gathers=False), MeshProblem(own, Mesh((side**3,), links[:1]), (0,), (0,))):
        time_of, same = points(other, matrix)[-1]
        assert same == parameters and time_of > 1.5 * least


def test_sums_are_scattered_where_the_next_operator_takes_parts() -> None:
    """An output that is split by inputs and read by inputs is a reduce-scatter, half of the sum."""
    first, second = linear("a", INPUT, 8, 8), linear("b", "a", 8, 8)
    graph = OperatorGraph((first, second), {INPUT: 80})
    own = Rooflines(graph, NOTHING, graph.parameters, KIND, None, 1)
    mesh, row = Mesh((2,), (Link(10**9, 0),)), combined(("forward",), ("parameters",))
    plain, free = (
        min(points(MeshProblem(own, mesh, (1,), scatters=on), row), key=lambda p: p[1]) for on in (False, True)
    )
    assert plain[1] == free[1] == graph.parameters // 2
    assert free[0] <= plain[0]
    problem = MeshProblem(own, mesh, (1,), keeps=False)
    wanted = [Signature((AxisStrategy("in"),), held) for held in ((1,), (WHOLE,))]
    rows = [own.index(each) for own, each in zip(problem.signatures, wanted, strict=True)]
    costs = problem.sharding.evaluate(rows)
    assert costs is not None and costs[0] == 40 + 80
    assert all(PARTIAL not in each.held for of in problem.signatures for each in of)


def test_meshes_of_a_team() -> None:
    """Ordered factorisations; axes inside nodes and across, whose rings share the card."""
    assert list(factorisations(8)) == [(8,), (2, 4), (4, 2), (2, 2, 2)]
    assert len(list(factorisations(12))) == 8
    inside, across = Link(10**9, 1), Link(10**8, 5)
    assert mesh_on((2, 4), 8, inside, across).links == (inside, inside)
    assert mesh_on((2, 4), 4, inside, across).links == (Link(10**8 // 4, 5), inside)
    assert mesh_on((8,), 4, inside, across).links == (across,)
    assert mesh_on((4, 2), 4, inside, across).links == (Link(10**8 // 2, 5), inside)
    assert mesh_on((2, 2, 2), 1, inside, across).links == (across,) * 3
    with pytest.raises(ValueError, match="axis 0"):
        mesh_on((2, 3), 4, inside, across)


@pytest.mark.parametrize(("tokens", "gain"), [rarely(False, 0.04), (True, 0.15)])
def test_gains_of_a_gpt3_block_inside_a_node(tokens: bool, gain: float) -> None:
    """Eight equal links: several axes are at most 4 % faster than one, and 15 % with parts of the tokens on some.

    The leanest choice, which has as much memory, gains at most 4 % and loses at most 1 %.
    """
    ends = []
    for sizes in ((8,), (2, 4), (2, 2, 2))[: 2 if QUICK else 3]:
        problem = MeshProblem(gpt3_block(), mesh_on(sizes, 8, Link(450 * 10**9, 3000), Link()), tokens=tokens)
        rows = points(problem, combined(("forward", "backward"), ("parameters", "saved")))
        ends.append((rows[0][0], rows[-1][0], rows[-1][1]))
    for fastest, leanest, least in ends[1:]:
        assert (1 - gain) * ends[0][0] < fastest <= ends[0][0]
        assert 0.96 * ends[0][1] < leanest < 1.01 * ends[0][1]
        assert least == ends[0][2]


@pytest.mark.parametrize("within", [4, 8])
def test_the_best_of_all_meshes_is_found(within: int) -> None:
    """No mesh dominates a point. On two nodes an axis in the node is best throughout; in one, several meshes are."""
    own, matrix = gpt3_block(), combined(("forward", "backward"), ("parameters", "saved"))
    inside, across = Link(450 * 10**9, 3000), Link(50 * 10**9, 5000)
    problems = [MeshProblem(own, mesh_on(sizes, within, inside, across)) for sizes in ((8,), (2, 4), (4, 2))]
    found = over_meshes(problems, matrix, Clock(Limits()))
    every = [tuple(point) for problem in problems for point in points(problem, matrix)]
    best = {a for a in every if not any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in every)}
    assert [point.costs for point in found] == sorted(best)
    for point in found:
        assert point.problem.sharding.project(matrix).evaluate(point.choice) == point.costs
    meshes = {point.problem.mesh.sizes for point in found}
    assert meshes == {(2, 4)} if within == 4 else len(meshes) > 1


def gpt3_block() -> Rooflines:
    """A block of GPT-3 175B on an H100, one sample."""
    teams = Teams(load_model("gpt3-175b"), load_cluster("64-h100"), 8, (1,), "adam", False)
    (kind,) = teams.cluster.kinds.values()
    return teams.rooflines(1, kind, 1)


@pytest.mark.parametrize(("operations", "bandwidth"), [(6e12, 9e9), (60e12, 9e9), (60e12, 3e9)])
def test_connected_layers_of_vgg_are_not_data_parallel(operations: float, bandwidth: float) -> None:
    """Behind convolutions on rows, the fastest strategies of both large linear maps sum no gradients of weights.

    On 64 devices two axes are faster than one.
    """
    least, plain = {}, AxisStrategy("row")
    for sizes in ((16,), (4, 4), (64,), (8, 8)):
        problem = vgg(sizes, operations, bandwidth)
        sharding = problem.sharding.project(combined(("forward", "backward", "summed")))
        found = frontier(sharding, Clock(Limits()))
        chosen = problem.signatures_of(found.choice(0))
        assert all(entry == plain for entry in chosen["trunk"].strategy)
        assert all(entry.loop != "row" for name in ("fc0", "fc1") for entry in chosen[name].strategy)
        least[sizes] = int(found.points[0, 0])
        rows = [[each.strategy for each in own].index((plain,) * len(sizes)) for own in problem.signatures]
        (data_parallel,) = sharding.evaluate(rows) or (0,)
        low, high = (0.1, 0.25) if operations < 1e13 else (0.5, 0.85)
        assert low < 1 - least[sizes] / data_parallel < high
    assert least[8, 8] < least[64,]


def vgg(sizes: tuple[int, ...], operations: float, bandwidth: float) -> MeshProblem:
    """VGG-16 with 32 images a device, as a trunk and three linear maps."""
    graph = dense(32 * prod(sizes), (25_088, 4096, 4096, 1000), trunk=31_000_000_000)
    passes = {
        name: round(sum(getattr(each, f"{name}_flops") for each in graph.operators) / operations * 1e9)
        for name in ("forward", "input_gradient", "weight_gradient")
    }
    cost = LayerCost(backward=passes["input_gradient"] + passes["weight_gradient"], **passes, saved=0, output=0)
    end, mesh = (0,) * len(sizes), Mesh(sizes, (Link(round(bandwidth), 15_000),) * len(sizes))
    return MeshProblem(Rooflines(graph, cost, graph.parameters, KIND, None, 1), mesh, end, end, keeps=False)
