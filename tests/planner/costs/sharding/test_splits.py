"""Teams over several nodes as meshes: the ways that are searched, and the plans that come of them."""

from dataclasses import replace
from itertools import pairwise, product
from math import prod
from pathlib import Path

import pytest

from helpers.instances import equal_devices
from helpers.operators import attention_block, block, of_many_tokens, pair, perceptrons, with_output
from pipeplan.core.cluster import Cluster, Link, Node
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Tie
from pipeplan.core.operators import SAMPLE, Operator, OperatorGraph, Weight
from pipeplan.core.plan import Plan
from pipeplan.core.strategies import WHOLE, LayerStrategies
from pipeplan.costs.sharding.coordinates import combined
from pipeplan.costs.sharding.members import Way
from pipeplan.costs.sharding.placements import ends_of
from pipeplan.costs.sharding.splits import LEAN, PASSES, MeshTeams
from pipeplan.costs.sharding.teams import Teams
from pipeplan.io.job_file import job_data, job_from_data
from pipeplan.solve import solve
from pipeplan_formulations.common.clock import no_limit
from pipeplan_formulations.sharding import least_choice

SLOW = Link(10**6, 1)


def pairs(nodes: int = 2, network: Link = SLOW, inside: Link | None = None) -> Cluster:
    """Nodes of two devices each, whose links are fast, on a network."""
    one = equal_devices(2, link=inside or Link(10**9, 1))
    node = Node(one.nodes[0].kinds, one.nodes[0].link)
    return replace(one, name="pairs", nodes=(node,) * nodes, network=network)


def on_meshes(cluster: Cluster, team: int = 4, axes: int = 2) -> tuple[MeshTeams, ...]:
    """The meshes of teams of perceptrons."""
    return MeshTeams.of(Teams(perceptrons(), cluster, team, (1, 2), "adam", False), 4, axes)


def of_two_axes(cluster: Cluster, team: int = 4) -> tuple[MeshTeams, ...]:
    """Those of them with two axes."""
    return tuple(each for each in on_meshes(cluster, team) if len(each.sizes) == 2)


def strategies_of(way: Way, i: int) -> LayerStrategies:
    """How a layer runs."""
    return dict(way.strategies)["pair", *ends_of(way.placements, way.passes, i)]


def of_fours() -> Cluster:
    """Three nodes of four devices."""
    return replace(pairs(), nodes=(Node(("unit",) * 4, Link(10**9, 1)),) * 3)


@pytest.mark.parametrize(
    ("cluster", "team", "axes", "shapes"),
    [
        (pairs(), 4, 2, {(4,), (2, 2)}),
        (pairs(), 2, 3, set()),
        (pairs(), 4, 1, {(4,)}),
        (pairs(), 4, 0, set()),
        (replace(pairs(4), nodes=(Node(("unit",)),) * 4), 4, 3, {(4,), (2, 2)}),
        (pairs(4), 8, 2, {(8,), (2, 4), (4, 2)}),
        (pairs(4), 8, 3, {(8,), (2, 4), (4, 2), (2, 2, 2)}),
        (of_fours(), 12, 2, {(12,), (3, 4), (6, 2)}),
    ],
)
def test_teams_are_meshes(cluster: Cluster, team: int, axes: int, shapes: set[tuple[int, ...]]) -> None:
    """All that divide the nodes evenly; teams in one node have one axis, or none if the model has tokens."""
    assert {each.sizes for each in on_meshes(cluster, team, axes)} == shapes


def test_unlike_layers_that_are_split_alike_cost_their_sum() -> None:
    """Whatever is chosen for them, by ring too, which hides messages behind long computations alone."""
    model = perceptrons(graph=attention_block())
    profiles = [
        replace(each, costs=tuple(replace(each.costs[0], forward=time, saved=time) for time in (50, 50, 400, 9000)))
        for each in model.profiles
    ]
    (mesh, _) = MeshTeams.of(Teams(replace(model, profiles=tuple(profiles)), pairs(), 4, (1, 2), "sgd", False), 4, 2)
    case, (kind,) = mesh.case(1, (1,), (True, True, True, False)), mesh.teams.kinds
    every, *ones = (mesh.problem(layers, case, kind, 2).sharding for layers in (range(4), [0], [1], [2], [3]))
    choices = {
        least_choice(each.project(row), no_limit())
        for each in (every, *ones)
        for row in (combined(("forward",)), PASSES, LEAN[1][:1])
    }
    assert len(choices) > 2
    for choice in choices:
        assert every.evaluate(choice) == tuple(map(sum, zip(*(one.evaluate(choice) for one in ones), strict=True)))


def test_a_layer_that_nothing_splits_leaves_ways_for_the_others() -> None:
    """On a mesh of two by two, where the first layer has no loops; where none has, there is no way."""
    model = perceptrons(2)
    bare = replace(pair(), operators=tuple(replace(each, loops={}) for each in pair().operators))
    first = replace(model.layers[0], operators="bare")
    mixed = replace(model, layers=(first, model.layers[1]), operators={**model.operators, "bare": bare})
    both = replace(mixed, layers=tuple(replace(layer, operators="bare") for layer in model.layers))
    meshes = [MeshTeams(Teams(each, pairs(), 4, (1,), "sgd", False), (2, 2), 4) for each in (mixed, both)]
    for way in meshes[0].ways():
        strategies = dict(way.strategies)
        names = {name for (name, *_), own in strategies.items() if own.splits_any}
        assert "pair" in names
    assert meshes[0].ways() and not [
        way
        for way in meshes[1].ways()
        for _, own in way.strategies
        if any(e.loop not in ("", SAMPLE) for s, _ in own.operators.values() for e in s)
    ]


def test_a_mesh_is_chosen_where_the_network_is_slow(tmp_path: Path) -> None:
    """Its plan has the strategies of all layers; without meshes the best plan takes longer, and the answer says so."""
    model = perceptrons(graph=block())
    asked = {"teams": (4,), "depths": (1,), "workers": 1}
    with_meshes, without = (solve(model, pairs(), 4, mesh_axes=axes, **asked) for axes in (2, 1))
    assert with_meshes.value == with_meshes.bound < without.value
    plan = with_meshes.plan
    assert plan.mesh == (2, 2) and without.plan.mesh == (4,)
    assert set(dict(plan.strategies)) == set(model.names)
    assert plan.stages[0].links == (Link(SLOW.bandwidth // 2, 1), Link(10**9, 1))
    assert "also as meshes of 2 x 2" in with_meshes.searched.as_text()
    assert "meshes" in " ".join(without.searched.not_searched)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_replicas_of_meshes_share_out_what_a_device_has() -> None:
    """At each level of ZeRO they keep a half of what they keep whole below it; at level 2 beside the whole weights."""
    options = {"replicas": (2,), "depths": (1,), "optimizer": "adam", "sequence_parallel": False, "workers": 1}
    kept = []
    for level in range(4):
        answer = solve(perceptrons(graph=block()), pairs(4), 4, teams=(4,), zero=(level,), **options)
        assert (answer.plan.zero, answer.plan.mesh) == (level, (2, 2))
        assert "as meshes of 2 x 2" in answer.searched.as_text()
        parts = answer.plan.stages[0].memory
        kept.append((parts.weights, parts.gradients, parts.optimizer))
    whole, gradients, state = kept[0]
    assert kept[1:] == [
        (whole, gradients, state // 2),
        (whole + whole // 2, gradients // 2, state // 2),
        (whole // 2, gradients // 2, state // 2),
    ]


def _images(name: str, weights: int, output: int, parts: int) -> OperatorGraph:
    """A linear map of samples, as of images: no tokens."""
    weight = Weight(f"{name}.weight", ("out", "in"), weights)
    flops = dict.fromkeys(("forward_flops", "input_gradient_flops", "weight_gradient_flops"), 2000)
    own = Operator(
        name,
        "linear",
        {"out": parts, "in": parts},
        {"input": ("sample", "in")},
        ("sample", "out"),
        output,
        True,
        (weight,),
        **flops,
    )
    return OperatorGraph((own,), {"input": output}, without_gradient=("input",) if name == "images" else ())


def test_one_stage_splits_samples_of_one_layer_and_the_weights_of_another(tmp_path: Path) -> None:
    """Small weights and large tensors, then the reverse, as in VGG (AutoDDL's case): in one node, proved."""
    graphs = {"images": _images("images", 40, 40_000, 3), "matrix": _images("matrix", 400_000, 400, 4)}
    model = perceptrons(2)
    layers = tuple(
        replace(layer, operators=name, parameters=graphs[name].parameters)
        for layer, name in zip(model.layers, graphs, strict=True)
    )
    model = replace(model, layers=layers, operators=graphs)
    asked = {"teams": (1, 2), "depths": (1,), "workers": 1}
    cluster = equal_devices(2, link=Link(10**9, 1))
    found, without = (solve(model, cluster, 4, mesh_axes=axes, **asked) for axes in (2, 0))
    assert found.value == found.bound < without.value
    first, second = (
        strategies.operators[name].strategy
        for strategies, name in zip(dict(found.plan.strategies).values(), graphs, strict=True)
    )
    assert [entry.loop for entry in first] == ["sample"]
    assert second[0].loop in ("out", "in")
    assert found.plan.mesh == (2,)
    assert "which alone split samples" in " ".join(without.searched.not_searched)
    found.plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == found.plan


def test_layers_take_only_as_many_parts_as_they_have_samples() -> None:
    """What is split along rows by the layer before is not where the next one has a single sample in that dimension."""
    images = _images("images", 40, 40_000, 4)
    (own,) = images.operators
    rows = replace(own, loops={"row": 4}, reads={"input": ("row", "in")}, makes=("row", "out"))
    model = perceptrons(2)
    layers = tuple(
        replace(own, operators=name, parameters=40) for own, name in zip(model.layers, ("rows", "images"), strict=True)
    )
    model = replace(model, layers=layers, operators={"rows": replace(images, operators=(rows,)), "images": images})
    (meshes,) = MeshTeams.of(Teams(model, equal_devices(2, link=Link(10**9, 1)), 2, (1, 2), "adam", False), 2, 1)
    assert {meshes.possible(way) for way in meshes.ways() if any(way.passes)} == {(2,)}


def test_layers_hand_over_tokens_that_only_their_other_operators_count() -> None:
    """What makes the output has no loop of tokens: these have the parts of the layer's other tensors, here ten."""
    first, *others = block().operators
    graph = replace(block(), operators=(first, *others[:-1], replace(others[-1], loops={})))
    for own in (graph, block()):
        teams = Teams(perceptrons(2, graph=own), pairs(), 4, (1,), "adam", False)
        meshes = next(each for each in MeshTeams.of(teams, 4, 2) if len(each.sizes) == 2)
        found = {placements for placements in product((WHOLE, 1), repeat=2) if any(meshes._passes(placements))}
        assert found == {(1, WHOLE), (WHOLE, 1)}  # four parts do not divide ten tokens


def test_teams_may_be_meshes_only() -> None:
    """Matrices of two by two: four devices split them along two axes, and planners of one axis have no such team."""
    found = solve(perceptrons(graph=pair(2, 2)), pairs(), 4, teams=(4,), depths=(1,), workers=1)
    assert found.plan.mesh == (2, 2)
    assert "no team that splits layers along one axis" in str(found.baselines["alpa"])


def test_layers_hand_over_what_the_next_one_reads() -> None:
    """Ways whose layers do not begin and end whole agree at every boundary; the model's ends are whole."""
    (teams,) = of_two_axes(pairs())
    for way in teams.ways():
        rows = [strategies_of(way, i) for i in range(4)]
        assert all(before.output == after.input for before, after in pairwise(rows))
        assert {*rows[0].input, *rows[-1].output} == {WHOLE}


@pytest.mark.parametrize("axes", [0, 1, 2, 3])
def test_jobs_say_which_meshes_are_searched(axes: int) -> None:
    """A job file has what was asked."""
    job = solve(perceptrons(1), equal_devices(2), 2, mesh_axes=axes, workers=1).job
    assert job.mesh_axes == axes
    assert job_from_data(job_data(job), "job") == job


@pytest.mark.parametrize("axes", [-1, 4, 1.5])
def test_more_axes_are_refused(axes: float) -> None:
    """None to three."""
    with pytest.raises(InputError, match="the most axes of a mesh"):
        Job(2, mesh_axes=axes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("memory", "gathered"), [(1700, True), (2900, False)])
def test_weights_are_gathered_where_memory_is_short(memory: int, gathered: bool, tmp_path: Path) -> None:
    """Each device keeps a part of a weight that it multiplies with its own tokens."""
    asked = {"teams": (4,), "depths": (1,), "micro_batches": (4,), "optimizer": "adam", "workers": 1}
    plan = solve(perceptrons(graph=of_many_tokens()), pairs(), 4, memory=memory, **asked).plan
    entries = {entry for signature in plan.strategies[1][1].operators.values() for entry in signature.strategy}
    assert plan.mesh == (2, 2)
    assert any(entry.gathers for entry in entries) is gathered
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_shared_weights_have_parts_of_gradients_in_all_layers_or_in_none() -> None:
    """A layer whose operators are not known runs all samples, so none that shares its weights runs on parts of them."""
    graph = of_many_tokens()
    shared = replace(graph.operators[0], loops={}, weights=(replace(graph.operators[0].weights[0], shared=True),))
    model = perceptrons(2, (4, 8), replace(graph, operators=(shared,)))
    first, last = model.layers
    layers = replace(first, parameters=64, operators=""), replace(last, parameters=0)
    tied = replace(model, layers=layers, ties=(Tie((first.name, last.name), 64),))
    apart = replace(model, layers=(replace(first, operators=""), last))
    by_samples = []
    for each in (tied, apart):
        meshes = MeshTeams.of(Teams(each, pairs(network=Link(10**9, 1)), 4, (4, 8), "adam", False), 8, 2)
        strategies = (
            strategies.operators["wide"].strategy
            for own in meshes
            for way in own.ways()
            for _, strategies in way.strategies
        )
        by_samples.append(any(entry.loop == SAMPLE for strategy in strategies for entry in strategy))
    assert by_samples == [False, True]


def of_long_sequences(output: int = 80) -> MeshTeams:
    """A mesh of two axes, for layers that may gather their weights, with so many bytes of output each."""
    model = perceptrons(graph=of_many_tokens(), sizes=(4,))
    model = replace(model, profiles=tuple(with_output(profile, output) for profile in model.profiles))
    every = MeshTeams.of(Teams(model, pairs(), 4, (4,), "adam", False), 4, 2)
    return next(each for each in every if len(each.sizes) == 2)


def test_gathered_weights_take_room_twice() -> None:
    """While a layer runs its weight is there, and as many bytes of the gradient, or half if an axis splits both."""
    teams = of_long_sequences()
    (kind,) = teams.teams.kinds
    gathered = 0
    for way in teams.ways():
        entries = strategies_of(way, 1).operators["wide"].strategy
        parts = 2 if {"in", "out"} & {entry.loop for entry in entries} else 1
        some = any(entry.gathers for entry in entries)
        assert teams.member(way, 1, kind, 4).workspace == 2 * 64 // parts * some
        gathered += some
    assert gathered > 3


@pytest.mark.parametrize("output", [79, 80, 81])
def test_outputs_in_parts_are_rounded_up(output: int) -> None:
    """Of 81 bytes between layers in two parts a device has 41; of outputs that are whole, all."""
    teams = of_long_sequences(output)
    (kind,) = teams.teams.kinds
    ways = teams.ways()
    parts = {
        way: prod(n for n, placement in zip(teams.sizes, way.placements, strict=True) if placement != WHOLE)
        for way in ways
    }
    assert {parts[way] for way in ways if any(way.passes)} == {2, 4}
    for way in ways:
        expected = [-(-output // parts[way]) if passes else output for passes in way.passes]
        assert [teams.member(way, i, kind, 4).output for i in range(4)] == expected
