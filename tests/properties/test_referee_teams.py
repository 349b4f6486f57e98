"""Questions about teams that the referee once found answered wrongly."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import fields, replace
from typing import Any

import pytest

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.model import LayerCost
from pipeplan.costs.sharding import question
from pipeplan.costs.sharding.layer_ways import LayerWays, MainStrategies
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.costs.sharding.teams import Teams
from pipeplan.costs.sharding.ways import TeamWays, _AllLayers
from pipeplan.search.space import space
from pipeplan.search.space.opening import Opening
from referee import questions
from referee.bridge import ask
from referee.operators import in_equal_teams
from referee.placed import PLACED
from referee.verdict import judge


def linear(*shared: str) -> dict[str, Any]:
    """A linear map of features to others: a weight that may be cut along the loop summed over, and a bias that not."""
    weights = [{"name": "weight", "loops": ["out", "in"], "size": 16}, {"name": "bias", "loops": ["out"], "size": 4}]
    operator = {"name": "map", "kind": "linear", "loops": {"in": 4}, "reads": {"input": ["in"]}, "makes": ["out"]}
    operator |= {"output": 4, "kept": True, "forward_flops": 40, "input_gradient_flops": 40}
    return {
        "input": 4,
        "operators": [
            operator
            | {
                "weights": [each | {"shared": each["name"] in shared} for each in weights],
                "weight_gradient_flops": 40,
            }
        ],
    }


def asked(layers: list[dict[str, Any]], graph: dict[str, Any], devices: int, **job: Any) -> dict[str, Any]:
    """A question about layers of 100 ns and 200 ns on devices of one node."""
    cost = {"forward": 100, "backward": 200, "input_gradient": 100, "weight_gradient": 100, "saved": 4, "output": 4}
    profile = {"device": "a", "micro_batch": 1, "provenance": {"how": "imported", "source": "drawn"}}
    return {
        "model": {
            "name": "asked",
            "layers": layers,
            "operators": {"linear": graph},
            "profiles": [profile | {"costs": {layer["name"]: {**cost} for layer in layers}}],
        },
        "cluster": {
            "name": "node",
            "devices": {"a": {}},
            "nodes": [{"devices": [{"kind": "a", "count": 1}] * devices, "link": {"bandwidth": 10**9}}],
            "network": None,
            "overlap": True,
        },
        "job": {"batch": 2, **job},
        "solve": {"backend": "cpsat", "time_limit": 60.0, "gap": 0.0, "workers": 1},
    }


def test_a_plan_of_single_devices_is_no_answer_where_teams_are_asked_for() -> None:
    """On slow links the fully sharded plan that stands beside the answer is faster, and was taken for one."""
    document = asked([{"name": "l0", "parameters": 20, "inputs": [], "operators": "linear"}], linear(), 2, teams=[2])
    document["cluster"]["nodes"][0]["link"] = {"bandwidth": 10**6}
    answer = ask(document)
    assert (answer["teams"], judge(document, answer).faults) == ([2], [])


@pytest.mark.parametrize("known", [True, False])
def test_layers_share_several_weights(known: bool) -> None:
    """One of them is cut, or the first layer's operators are not known, so that other weights may be."""
    layers: list[dict[str, Any]] = [
        {"name": "l0", "parameters": 20, "inputs": []},
        {"name": "l1", "parameters": 0, "inputs": ["l0"], "operators": "linear"},
    ]
    graph = linear("weight", "bias")
    if known:
        layers[0]["operators"] = "linear"
    else:
        more = {"name": "more", "kind": "linear", "loops": {"out": 4}, "reads": {"map": ["out"]}, "makes": ["more"]}
        more |= {"output": 4, "forward_flops": 40, "weights": [{"name": "own", "loops": ["more", "out"], "size": 8}]}
        graph["operators"].append(more)
        layers[1]["parameters"] = 8
    document = asked(layers, graph, 4, teams=[2])
    document["model"]["ties"] = [{"layers": ["l0", "l1"], "parameters": 20}]
    answer = ask(document)
    assert (answer["outcome"], judge(document, answer).faults) == ("plan", [])


def test_ways_of_the_first_of_equal_layers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if main strategies were listed for it alone, which has no parts of tokens beside it, as later ones have."""
    graph = linear()
    graph["operators"][0] |= {
        "loops": {"token": 4}, "reads": {"input": ["token", "in"]}, "makes": ["token", "out"], "product": True,
    }  # fmt: skip
    layers = [{"name": f"l{i}", "parameters": 20, "inputs": ["l1"] * (i == 2), "operators": "linear"} for i in range(3)]
    document = asked(layers, graph, 2, teams=[2])
    assert not judge(document, ask(document)).faults
    alike = TeamWays._alike
    monkeypatch.setattr(TeamWays, "_alike", lambda own, *layers: (row[:1] for row in alike(own, *layers)))
    assert "can be split" in str(judge(document, ask(document)).faults)


def test_layers_that_are_split_by_their_mean_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring hides messages behind the mean of computations of which all but one are short; gathers take less then."""
    axes, heads = ["token", "f"], {"queries": 4, "keys": 1000, "heads": 1}
    own = {"name": "map", "kind": "attention", "loops": {"token": 4}, "reads": {"input": axes}, "makes": axes}
    own |= {"weights": [], "output": 4, "kept": True, "forward_flops": 40, "input_gradient_flops": 80}
    layers = [
        {"name": f"l{i}", "parameters": 0, "inputs": [f"l{i - 1}"] * (i > 0), "operators": "linear"} for i in range(8)
    ]
    document = asked(layers, {"input": 4, "operators": [own | {"attention": heads}]}, 2, teams=[2])
    for number, cost in enumerate(document["model"]["profiles"][0]["costs"].values()):
        cost |= dict.fromkeys(("forward", "backward", "input_gradient"), 16000 if number == 5 else 10)
        cost["weight_gradient"] = 0
    assert not judge(document, ask(document)).faults
    different, known = Teams.different, dict[object, Rooflines]()

    def mean(own: Teams, layers: Sequence[int], kind: DeviceKind, size: int) -> tuple[tuple[Rooflines, int], ...]:
        rows = different(own, layers, kind, size)
        count = sum(count for _, count in rows)
        costs = {
            each.name: sum(getattr(one.cost, each.name) * n for one, n in rows) // count for each in fields(LayerCost)
        }
        first = replace(rows[0][0], cost=LayerCost(**costs)) if count > 1 else rows[0][0]
        return ((known.setdefault((*layers, size), first), 1),)

    monkeypatch.setattr(Teams, "different", mean)
    assert "fastest strategies of (2,)" in str(judge(document, ask(document)).faults)


def without_split_weights() -> dict[str, Any]:
    """A question about a layer of which only an operator without weights can be split."""
    graph = linear()
    graph["operators"][0]["loops"] = {}
    act = {"name": "act", "kind": "drawn", "loops": {"out": 4}, "reads": {"map": ["out"]}, "makes": ["out"]}
    graph["operators"].append(act | {"weights": [], "output": 4, "forward_flops": 400, "input_gradient_flops": 400})
    layers = [{"name": "l0", "parameters": 20, "inputs": [], "operators": "linear"}]
    return asked(layers, graph, 2, teams=[2], mesh_axes=0)


def test_layers_without_main_words_that_are_never_split_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a layer without a split weight other operators are split where that is faster in spite of what it costs."""
    document = without_split_weights()
    document["cluster"]["devices"]["a"]["shard_overhead"] = 1
    assert not judge(document, ask(document)).faults
    monkeypatch.setattr(LayerWays, "_time", lambda *_: 0)
    assert "can be split" in str(judge(document, ask(document)).faults)


@pytest.mark.parametrize("pays_on", ["one kind", "one size"])
def test_ways_that_split_something_only_there_are_searched(pays_on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another kind, or for a smaller micro-batch, they split nothing; the referee notices if they are left out."""
    document = without_split_weights()
    cluster, job = document["cluster"], document["job"]
    if pays_on == "one kind":
        cluster["devices"]["b"] = {"timed_as": "a", "shard_overhead": 1000}
        cluster["nodes"].append(cluster["nodes"][0] | {"devices": [{"kind": "b", "count": 1}] * 2})
        cluster["network"] = {"bandwidth": 10**9}
    else:
        cluster["devices"]["a"]["shard_overhead"] = 40
        job |= {"batch": 4, "micro_batches": [1, 4], "extrapolate": True}
    answer = ask(document)
    assert (answer["teams"], judge(document, answer).faults) == ([2], [])
    splits = _AllLayers.splits

    def everywhere(layers: _AllLayers, main: Mapping[str, MainStrategies]) -> bool:
        cells = [copy(layers) for _ in layers._rows]
        for cell, row in zip(cells, layers._rows.items(), strict=True):
            cell._rows = dict([row])
        return all(splits(cell, main) for cell in cells)

    monkeypatch.setattr(_AllLayers, "splits", everywhere)
    assert "can be split" in str(judge(document, ask(document)).faults)


def with_another_kind(document: dict[str, Any], count: int = 1) -> dict[str, Any]:
    """The question with so many devices of another kind before the others, as fast as these, and a layer there."""
    cluster, model = document["cluster"], document["model"]
    cluster["devices"]["b"] = {}
    cluster["nodes"][0]["devices"][:0] = [{"kind": "b", "count": 1}] * count
    model["profiles"].append(model["profiles"][0] | {"device": "b"})
    document["job"]["pin"] = [("l0", "b")]
    return document


@pytest.mark.parametrize("unlike", [True, False])
def test_a_layer_is_pinned_to_a_kind_of_which_there_is_no_team(unlike: bool) -> None:
    """Single devices are asked for too, so that teams of this size are left out, or lie beside them."""
    document = with_another_kind(without_split_weights())
    document["job"] |= {"teams": [1, 2], "unlike_teams": unlike}
    answer = ask(document)
    assert (answer["outcome"], answer["teams"], judge(document, answer).faults) == ("plan", [1], [])


def test_a_size_without_teams_of_a_pinned_kind_that_is_refused_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the teams of each size had all kinds that layers are pinned to."""
    document = with_another_kind(without_split_weights())
    document["job"]["teams"] = [1, 2]
    monkeypatch.setattr(question, "homeless", lambda *_: None)
    monkeypatch.setattr(Opening, "raised", lambda *_: 0)  # so that they are opened
    assert "contradiction" in str(judge(document, ask(document)).faults)


def test_a_layer_is_pinned_to_a_kind_of_which_there_are_teams_of_one_size() -> None:
    """Teams of four are left out, as there are none of the layer's kind."""
    document = with_another_kind(without_split_weights(), 2)
    document["cluster"]["nodes"][0]["devices"] += [{"kind": "a", "count": 1}] * 2
    document["job"]["teams"] = [2, 4]
    answer = ask(document)
    assert (answer["outcome"], answer["teams"], judge(document, answer).faults) == ("plan", [2], [])


def test_a_layer_is_pinned_to_a_kind_without_teams_where_these_are_asked_for() -> None:
    """It says that there is no team of the layer's kind, and how to ask."""
    document = with_another_kind(without_split_weights())
    answer = ask(document)
    assert (answer["outcome"], judge(document, answer).faults) == ("refused", [])
    assert "'b'" in answer["text"] and "ask for teams of 1 too" in answer["text"]


def test_outputs_are_split_by_what_layers_of_a_graph_take_in_the_mean() -> None:
    """Where a frozen layer takes much less than those like it, other outputs may be split than by its own times."""
    axes = ["token", "f"]
    drawn: dict[str, Any] = {"kind": "drawn", "weights": [], "makes": axes, "loops": {"token": 12}, "kept": True}
    norm = drawn | {"name": "norm", "reads": {"input": axes}, "output": 40}
    norm |= {"forward_flops": 2, "input_gradient_flops": 2}
    heads = {"queries": 40, "keys": 400, "heads": 2, "causal": False}
    attention = drawn | {"name": "attention", "reads": {"norm": axes}, "output": 200, "kept": False}
    attention |= {"forward_flops": 80, "input_gradient_flops": 160, "attention": heads}
    total = drawn | {"name": "total", "reads": {"attention": axes, "norm": axes}, "output": 8, "loops": {}}
    total |= {"forward_flops": 12, "input_gradient_flops": 2}
    layers = [
        {"name": f"l{i}", "parameters": 0, "inputs": [f"l{i - 1}"] * (i > 0), "operators": "linear"} for i in range(4)
    ]
    document = asked(layers, {"input": 400, "operators": [norm, attention, total]}, 1, teams=[2], recompute="full")
    image = drawn | {"name": "image", "reads": {"input": ["sample", "h"]}, "makes": ["sample", "f"], "loops": {}}
    document["model"]["operators"]["images"] = {"input": 0, "operators": [image | {"output": 8}]}
    cluster = document["cluster"]
    cluster["nodes"] = [cluster["nodes"][0] | {"link": {"bandwidth": 10**8}} for _ in range(2)]
    cluster["network"] = {"bandwidth": 10**9, "latency": 1}
    costs = document["model"]["profiles"][0]["costs"]
    for layer, row in zip(layers, ((50, 0, 0), (50, 550, 0), (150, 200, 200), (600, 950, 450)), strict=True):
        forward, backward, of_input = row
        times = {"forward": forward, "backward": backward, "input_gradient": of_input}
        costs[layer["name"]] |= times | {"weight_gradient": backward - of_input}
    answer = ask(document)
    assert (answer["outcome"], judge(document, answer).faults) == ("plan", [])


def test_teams_that_all_have_several_stages_are_searched_in_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `interleaved` is named, so no team has one stage, whose bounds stand for those of several."""
    monkeypatch.setattr(space, "PAIRS", 0)
    document = questions.question(775)
    document["solve"]["gap"] = 0.1
    assert document["job"]["schedules"] == ["interleaved"]
    assert judge(document, ask(document)).faults == []


def test_unlike_teams_have_one_stage_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only families that place stages are named there are no mixes, and teams are of one size."""
    monkeypatch.setattr(questions, "ROUNDS", 1.0)
    document = questions.question(1_600_600)
    assert document["job"]["unlike_teams"] and {*document["job"]["schedules"]} == {*PLACED}
    assert judge(document, ask(document)).faults == []


@pytest.mark.parametrize("seed", [1_722_207, 1_722_056])
def test_only_teams_of_two_are_answered(seed: int) -> None:
    """A way that splits samples is not closed by the bound of ways that do not; no time is an answer without teams."""
    document = questions.question(seed)
    in_equal_teams(document)
    document["job"]["teams"] = [2]
    assert not judge(document, ask(document)).faults
