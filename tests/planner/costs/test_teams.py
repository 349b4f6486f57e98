"""Teams: placements of signatures, redistributions, the splits worth searching, and plans with teams."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from helpers.instances import equal_devices
from helpers.operators import COST, block, pair, perceptrons, with_output
from helpers.ways import cuts, cuts_of
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Layer, Model, Profile, Provenance, Tie
from pipeplan.core.operators import INPUT, Operator, OperatorGraph, Weight
from pipeplan.core.plan import Plan
from pipeplan.core.searched import UNLIKE_MESHES, UNLIKE_TEAMS, UNLIKE_TIES
from pipeplan.core.splits import Mix
from pipeplan.core.strategies import PARTIAL, WHOLE, AxisStrategy
from pipeplan.costs.sharding import together
from pipeplan.costs.sharding.exchanges import redistribution_time
from pipeplan.costs.sharding.layer_ways import LayerWays
from pipeplan.costs.sharding.placements import made_placement, returned_placement
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.question import MixedQuestion, TeamQuestion, team_questions
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.costs.sharding.shapes import Mesh
from pipeplan.costs.sharding.strategies import strategies
from pipeplan.io.load import load_cluster, load_model
from pipeplan.io.model_file import model_data, model_from_data
from pipeplan.search.scope import searched
from pipeplan.search.space.spaces import Spaces
from pipeplan.solve import solve

MEGATRON = {"wide.weight": 0, "narrow.weight": 1}


def test_layouts_are_those_of_a_matrix_product() -> None:
    """Columns need the whole input and return a part of its gradient; rows make a part of the output."""
    wide = pair().operators[0]
    assert (made_placement(wide, "out"), returned_placement(wide, "out", INPUT)) == (1, PARTIAL)
    assert (made_placement(wide, "in"), returned_placement(wide, "in", INPUT)) == (PARTIAL, 1)
    assert (made_placement(wide, ""), returned_placement(wide, "", INPUT)) == (WHOLE, WHOLE)


def test_tokens_are_split_where_asked_for() -> None:
    """The loop over tokens gives no signature by itself."""
    norm = Operator("norm", "norm", {"token": 4, "x": 2}, {INPUT: ("token", "x")}, ("token", "x"), 8)
    assert strategies(norm, (2,), tokens=False) == ((AxisStrategy(),), (AxisStrategy("x"),))
    assert strategies(norm, (2,)) == ((AxisStrategy(),), (AxisStrategy("token"),), (AxisStrategy("x"),))


def test_redistributions_send_what_rings_send() -> None:
    """Per member (T - 1) / T of the bytes for a gather or a scatter, twice that for an all-reduce."""
    link = Link(10**9, 0)
    times = {(a, b): redistribution_time(a, b, 800, 4, link) for a, b in product((WHOLE, PARTIAL, 0, 1), repeat=2)}
    assert times[PARTIAL, WHOLE] == 1200
    assert times[PARTIAL, 0] == times[0, WHOLE] == 600
    assert times[0, 1] == 150
    assert times[WHOLE, 1] == times[WHOLE, PARTIAL] == times[0, 0] == 0
    assert times[0, PARTIAL] is None


def test_a_pair_is_split_by_columns_then_rows() -> None:
    """Megatron's pair is the only way worth searching where links are fast: a sum forward and one backward."""
    model, cluster = perceptrons(), equal_devices(4, link=Link(10**9, 1))
    (question,) = team_questions(model, cluster, Job(4, teams=(2,)))
    assert cuts(model, question.split) == MEGATRON
    cost = question.model.profiles[0].costs[0]
    reduced = 2 * (1 + 40)  # an all-reduce of 80 bytes in 2 rounds
    assert cost.forward == COST.forward // 2 + reduced
    assert cost.backward == COST.backward // 2 + reduced
    assert question.model.layers[0].parameters == pair().parameters // 2
    assert cost.saved == 320 + 80  # the output is whole
    assert cost.update == COST.update // 2


def test_tensors_between_layers_are_split_along_tokens(tmp_path: Path) -> None:
    """A gather and a reduce-scatter take the place of an all-reduce, and weight gradients gather once more."""
    model, cluster, rounds = perceptrons(graph=block()), equal_devices(4, link=Link(10**9, 1)), 1 + 40
    whole, *others = team_questions(model, cluster, Job(4, teams=(2,)))
    again = whole.model.profiles[0].costs[1].weight_gradient + rounds
    parts = next(each for each in others if each.model.profiles[0].costs[1].weight_gradient == again)
    assert (whole.split.sequence, parts.split.sequence) == ((), (True, True, True, False))
    before, after = whole.model.profiles[0].costs, parts.model.profiles[0].costs
    inside, last = after[1], after[3]
    assert inside.forward == before[1].forward == COST.forward // 2 + 2 * rounds
    assert inside.weight_gradient == before[1].weight_gradient + rounds
    assert inside.input_gradient == before[1].input_gradient
    assert inside.output == COST.output // 2 and last.output == COST.output
    assert inside.forward == last.forward - rounds  # which makes all
    kept = 80 + 320 + 320 + 80
    assert before[1].saved == -(-720 * 80 // kept) * 2 + 2 * (720 * 160 // kept)
    assert inside.saved == 2 * (720 * 40 // kept) + 2 * (720 * 160 // kept)
    assert inside.update - before[1].update == 2 * 1 + 8  # an all-reduce of the norm's weight
    assert len(list(team_questions(model, cluster, Job(4, sequence_parallel=False, teams=(2,))))) == 1
    nodes = (Node(("unit", "unit"), Link(10**9, 1)),) * 2
    slow = Cluster("slow", cluster.kinds, nodes, Link(10**6, 1), Overlap.COPY)
    found = solve(model, slow, 4, teams=(2,), depths=(2,), workers=1)
    assert [strategies.output for _, strategies in found.plan.strategies] == [(1,)] * 3 + [(WHOLE,)]
    assert "sequence-parallel teams of 2" in str(found)
    found.plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == found.plan


@pytest.mark.parametrize("output", [79, 80, 81])
def test_outputs_in_parts_of_the_tokens_are_rounded_up(output: int) -> None:
    """Of 81 bytes between two layers a member has 41; of the last output, which is whole, all."""
    model, cluster = perceptrons(graph=block()), equal_devices(4, link=Link(10**9, 1))
    model = replace(model, profiles=tuple(with_output(profile, output) for profile in model.profiles))
    _, parts, *_ = team_questions(model, cluster, Job(4, teams=(2,)))
    assert [cost.output for cost in parts.model.profiles[0].costs] == [-(-output // 2)] * 3 + [output]


def test_operators_of_split_layers_take_longer() -> None:
    """All three operators in forward and input gradient, both maps in the weight gradient; whole layers do not."""
    model, cluster = perceptrons(), equal_devices(4, link=Link(10**9, 1))
    slower = replace(cluster, kinds={"unit": replace(cluster.kinds["unit"], shard_overhead=7)})
    found = [
        next(iter(team_questions(model, each, Job(4, teams=(2,))))).model.profiles[0].costs[0]
        for each in (cluster, slower)
    ]
    halves = [(cost.forward, cost.backward, cost.input_gradient, cost.weight_gradient) for cost in found]
    assert [b - a for a, b in zip(*halves, strict=True)] == [21, 35, 21, 14]
    assert found[1].update == found[0].update
    large = replace(cluster, kinds={"unit": replace(cluster.kinds["unit"], shard_overhead=10**6)})
    assert solve(model, large, 4, teams=(1, 2), optimizer="adam", workers=1).plan.team == 1


def test_too_many_ways_are_combined_by_what_they_have_least_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """All unlike layers then take least time, or keep least; the splits are some of those in all combinations."""
    one, other = block(), pair(inner=16)
    model = perceptrons(graph=one)
    layers = (replace(model.layers[0], operators="other", parameters=other.parameters), *model.layers[1:])
    mixed = replace(model, layers=layers, operators={"pair": one, "other": other})
    cluster, job = equal_devices(4, link=Link(10**7, 1)), Job(4)
    asked = replace(job, teams=(2,))

    def found() -> set[tuple[str, ...]]:
        questions = team_questions(mixed, cluster, asked)
        return {tuple(str(cuts(mixed, each.split, i)) for i in range(2)) for each in questions}

    every = found()
    monkeypatch.setattr(together, "MOST", 2)
    assert found() < every


def test_slow_links_leave_layers_whole() -> None:
    """Splits that take longer stay worth searching, as they need less memory."""
    fast, slow = (equal_devices(4, link=Link(rate, 1)) for rate in (10**9, 10**3))
    plans = [solve(perceptrons(), cluster, 4, teams=(1, 2), optimizer="adam", workers=1) for cluster in (fast, slow)]
    assert plans[0].value < plans[1].value
    assert plans[1].plan.team == 1
    tight = replace(slow, kinds={"unit": replace(slow.kinds["unit"], memory=2500)})
    assert solve(perceptrons(1), tight, 1, teams=(1, 2), optimizer="adam", zero=(0,)).plan.team == 2


def test_the_answer_is_the_best_of_all_teams(tmp_path: Path) -> None:
    """One search over teams of 1, 2 and 4 finds the least of three searches; what it is proved for is said."""
    model, cluster = perceptrons(), equal_devices(4, link=Link(10**8, 10))
    alone = [solve(model, cluster, 4, teams=(team,), optimizer="adam", workers=1) for team in (1, 2, 4)]
    found = solve(model, cluster, 4, teams=(1, 2, 4), optimizer="adam", workers=1)
    assert found.value == found.bound == min(each.value for each in alone)
    assert f"teams of {found.plan.team}" in str(found) or found.plan.team == 1
    assert "teams of 1 and 2 devices, layers split in 1 way" in found.searched.as_text()
    assert "teams of 4 devices ruled out" in found.searched.as_text()
    assert any("meshes inside a node" in each for each in found.searched.not_searched)
    assert any("sequence parallelism" in each for each in found.searched.not_searched)
    assert [each.plan.team for each in alone] == [1, 2, 4]
    assert [cuts_of(model, "pair", strategies) for _, strategies in alone[1].plan.strategies] == [MEGATRON] * 4
    assert alone[1].plan.fingerprint == model.fingerprint
    path = tmp_path / "plan.json"
    alone[1].plan.save(path)
    assert Plan.load(path) == alone[1].plan


def tied_layers() -> Model:
    """An embedding and a head that share a table."""
    table = Weight("table", ("strategy", "feature"), 64, shared=True)
    lookup = Operator(
        "lookup",
        "embedding",
        {"strategy": 8, "feature": 8},
        {INPUT: ("token",)},
        ("token", "feature"),
        80,
        True,
        (table,),
    )
    head = Operator(
        "head", "linear", {"strategy": 8, "feature": 8}, {INPUT: ("token", "feature")}, ("token", "strategy"), 80, True,
        (table,), 10, 10, 10,
    )  # fmt: skip
    layers = (Layer("first", 64, operators="lookup"), Layer("last", 0, ("first",), operators="head"))
    return Model(
        "tied", layers, (Profile("unit", 1, (COST, COST), Provenance("imported", "test")),),
        ties=(Tie(("first", "last"), 64),),
        operators={"lookup": OperatorGraph((lookup,)), "head": OperatorGraph((head,), {INPUT: 80})},
    )  # fmt: skip


def test_shared_weights_are_cut_alike() -> None:
    """A weight that two layers share has one axis, or none, in every split."""
    questions = list(team_questions(tied_layers(), equal_devices(2, link=Link(10**9, 1)), Job(1, teams=(2,))))
    axes = {tuple(cuts(tied_layers(), each.split, i).get("table") for i in range(2)) for each in questions}
    assert axes
    assert all(first == last for first, last in axes)
    split = [each for each in questions if "table" in cuts(tied_layers(), each.split, 1)]
    assert {each.model.ties[0].parameters for each in split} == {32}


def test_devices_of_a_node_make_up_teams() -> None:
    """Of one kind, within a node; leftovers are unused, and the members share the network's card."""
    kinds = {name: DeviceKind(name, memory=9, price=2.0, timed_as="unit") for name in ("a", "b")}
    nodes = (Node(("a", "b", "a", "a"), Link(10**9, 3)), Node(("b", "b"), Link(10**6, 3)))
    cluster = Cluster("mixed", kinds, nodes, Link(1001, 5), Overlap.COPY)
    question = next(iter(team_questions(perceptrons(), cluster, Job(4, teams=(2,)))))
    assert [node.kinds for node in question.cluster.nodes] == [("a",), ("b",)]
    first, second = question.cluster.devices
    assert question.cluster.link(first, second) == Link(500, 5)
    assert {kind.price for kind in question.cluster.kinds.values()} == {4.0}


def test_replicas_of_teams_share_out_what_a_member_has() -> None:
    """At each level of ZeRO they keep a half of what they keep whole below it; at level 2 beside the whole weights."""
    cluster, model = equal_devices(4, link=Link(10**7, 1)), perceptrons()
    options = {"replicas": (2,), "depths": (1,), "optimizer": "adam", "workers": 1}
    kept = []
    for level in range(4):
        plan = solve(model, cluster, 4, teams=(2,), zero=(level,), **options).plan
        assert (plan.zero, plan.team) == (level, 2)
        parts = plan.stages[0].memory
        kept.append((parts.weights, parts.gradients, parts.optimizer))
    whole, gradients, state = kept[0]
    assert whole < solve(model, cluster, 4, teams=(1,), zero=(0,), **options).plan.stages[0].memory.weights
    assert kept[1:] == [
        (whole, gradients, state // 2),
        (whole + whole // 2, gradients // 2, state // 2),
        (whole // 2, gradients // 2, state // 2),
    ]


def test_mixes_share_out_no_gradients() -> None:
    """Teams of one size are searched at all levels of ZeRO that are asked for, mixes at levels 0 and 1."""
    cluster = replace(equal_devices(3), nodes=(Node(("unit",) * 3, Link(10**7, 1)),))
    for asked, alike, mixed in (((0, 3), {(0, 3)}, {(0,)}), ((2, 3), {(2, 3)}, set()), ((), {()}, {()})):
        found = list(team_questions(perceptrons(), cluster, Job(4, zero=asked, teams=(1, 2), unlike_teams=True)))
        assert {each.job.zero for each in found if isinstance(each, TeamQuestion)} == alike
        assert {each.job.zero for each in found if isinstance(each, MixedQuestion)} == mixed
    spaces = Spaces(perceptrons(), cluster, Job(4, teams=(1, 2), unlike_teams=True))
    assert [tuple(space.job.level for space in own.levels) for own in spaces.mixed] == [(0, 1)]
    orders = Spaces(perceptrons(), cluster, Job(4, teams=(1, 2), unlike_teams=True, schedules=("any",)))
    assert {own.levels for split, own in orders.teams.items() if isinstance(split, Mix)} == {(0, 1)}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"teams": (3,)}, "no operator"),
        ({"teams": (8,)}, "no node"),
        ({"teams": (2,), "pin": (("l0", "d1"),)}, "pin it to a kind"),
        ({"teams": (2,), "objective": "bottleneck"}, "time of steps"),
        ({"teams": (2,), "intra_layer": True}, "drop one"),
        ({"teams": (0,)}, "must be at least 1, not 0"),
    ],
)
def test_what_teams_exclude_is_refused(options: dict[str, object], text: str) -> None:
    """Each refusal says what to change."""
    with pytest.raises(InputError, match=text):
        solve(perceptrons(), equal_devices(6), 4, **options)


def test_models_without_operators_have_no_teams() -> None:
    """The message says to profile the model again."""
    with pytest.raises(InputError, match="profile it again"):
        solve(load_model("vgg-16"), load_cluster("4-v100-nvlink"), 64, teams=(1, 2))


def test_what_teams_leave_whole_is_named() -> None:
    """Layers whose operators are not known, with what that costs; lengths that a team does not divide."""
    model = perceptrons(graph=pair(8, 33))
    model = replace(model, layers=(*model.layers[:3], replace(model.layers[3], operators="")))
    found = solve(model, equal_devices(2), 4, teams=(2,), workers=1)
    (unknown,) = found.whole.operators
    assert (unknown.names, unknown.parameters) == (("l3",), model.layers[3].parameters)
    assert unknown.time - unknown.lost == unknown.time // 2
    assert "whole on every device: 1 unknown layer operator (l3)" in str(found)
    assert "a team of 2 leaves whole what it does not divide: 33 along 'out' of wide (3 does)" in " ".join(
        str(found).split()
    )
    assert found.as_json()["whole_in_teams"]["lengths"][0]["nearest"] == 3
    assert not solve(model, equal_devices(2), 4, teams=(1,), workers=1).whole.operators
    with pytest.raises(InputError, match=r"teams of 3: .*divide no length .* 8 along 'in' .* are 2 and 4"):
        solve(perceptrons(), equal_devices(3), 4, teams=(3,))


def test_several_ends_are_whole() -> None:
    """Inputs and outputs are whole, also outputs that are read; files keep them; what has no gradient sends none."""
    wide, act, narrow = pair().operators
    narrow = replace(narrow, reads={**narrow.reads, "input#2": ("token", "other")})
    graph = OperatorGraph((wide, act, narrow), {INPUT: 80, "input#2": 40}, ("input#2", "act", "narrow"))
    model = replace(perceptrons(), operators={"pair": graph})
    data = model_data(model)
    assert {"inputs", "outputs"} <= set(data["operators"]["pair"])
    assert model_from_data(data, "file") == model

    def times(graph: OperatorGraph) -> tuple[int, int]:
        """Forward and backward of a member, split by columns and rows."""
        own = Rooflines(graph, COST, graph.parameters, DeviceKind("unit"), None, 1)
        problem = MeshProblem(own, Mesh((2,), (Link(10**9, 1),)), tokens=False, gathers=False)
        main = (("wide", (AxisStrategy("out"),)), ("narrow", (AxisStrategy("in"),)))
        device = LayerWays(problem, again=False).device(main)
        return device.forward, device.backward

    forward, backward = times(graph)
    gathered = times(replace(graph, outputs=("narrow",)))
    silent = times(replace(graph, without_gradient=("input#2",)))
    assert forward == gathered[0] + 161  # a gather of 320 bytes
    assert silent[0] == forward
    assert silent[1] == backward - 2 * 21  # an all-reduce of 40 bytes
    with pytest.raises(InputError, match="no operator, nor an input"):
        replace(graph, outputs=("nothing",))


@pytest.mark.parametrize(("outputs", "split"), [((), True), (("input", "add"), False)])
def test_what_is_passed_on_is_not_split_along_tokens(outputs: tuple[str, ...], split: bool) -> None:
    """A layer that returns its input needs all of it, so the layer before hands on all tokens."""
    first, other = block(), replace(block(), outputs=outputs)
    model = perceptrons(2)
    layers = [
        replace(layer, operators=name, parameters=first.parameters)
        for layer, name in zip(model.layers, ("first", "second"), strict=True)
    ]
    model = replace(model, layers=tuple(layers), operators={"first": first, "second": other})
    questions = list(team_questions(model, equal_devices(2, link=Link(10**9, 1)), Job(2, teams=(2,))))
    assert {each.split.passes for each in questions} == {(False, False)} | {(True, False) for _ in range(split)}


def test_operators_of_a_layer_must_be_its_own() -> None:
    """Other weights than the layer's, unknown names and sources are refused; files keep what is right."""
    model = perceptrons()
    assert model_from_data(model_data(model), "file") == model
    with pytest.raises(InputError, match="have weights of 512 bytes, the layer has 9"):
        replace(model, layers=(replace(model.layers[0], parameters=9), *model.layers[1:]))
    with pytest.raises(InputError, match="did you mean 'pair'"):
        replace(model, layers=(replace(model.layers[0], operators="pare"), *model.layers[1:]))
    with pytest.raises(InputError, match="no earlier operator makes"):
        OperatorGraph(pair().operators[1:])


def test_stages_have_teams_of_unlike_sizes() -> None:
    """On three devices of which two are a team; the answer says what it is proved for, or how to ask for more."""
    model, cluster = perceptrons(), equal_devices(3, link=Link(10**9, 1))
    asked = {"teams": (1, 2), "depths": (2,), "replicas": (1,), "workers": 1}
    alike, unlike = (solve(model, cluster, 4, unlike_teams=wanted, **asked) for wanted in (False, True))
    assert set(unlike.plan.teams) == {1, 2} and set(alike.plan.teams) == {1}
    assert unlike.value == unlike.bound < alike.value
    assert "teams of unlike sizes" in unlike.searched.as_text()
    assert any("--unlike-teams" in each for each in alike.searched.not_searched)
    assert not {UNLIKE_TIES, UNLIKE_MESHES, UNLIKE_TEAMS} & set(unlike.searched.not_searched)


def test_answers_say_which_unlike_teams_are_not_searched() -> None:
    """Those that extend over nodes, those of layers that share weights; and all, where the order is given."""
    nodes = tuple(Node(("unit",) * 2, Link(10**9, 1)) for _ in range(2))
    cluster = replace(equal_devices(4), nodes=nodes, network=Link(10**9, 1))
    tied = tied_layers()
    options = {"teams": (1, 2, 4), "unlike_teams": True, "zero": (0,)}
    found = searched(Spaces(tied, cluster, Job(1, **options)))
    assert "stages also with teams of unlike sizes (one way to fill the nodes)" in found.teams
    assert {UNLIKE_TIES, UNLIKE_MESHES} < set(found.not_searched) and UNLIKE_TEAMS not in found.not_searched
    found = searched(Spaces(tied, cluster, Job(1, order="given", **options)))
    assert UNLIKE_TEAMS in found.not_searched and "unlike sizes" not in found.teams


def test_teams_of_one_size_have_none_of_unlike_sizes() -> None:
    """The sizes are asked for."""
    with pytest.raises(InputError, match="name several sizes"):
        Job(4, teams=(2,), unlike_teams=True)
