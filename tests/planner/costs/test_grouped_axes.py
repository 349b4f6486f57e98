"""Axes that are split group by group: what plans and files say of them, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.instances import equal_devices
from helpers.operators import linear, pair, perceptrons
from helpers.ways import cuts
from pipeplan.core.cluster import Link
from pipeplan.core.errors import InputError
from pipeplan.core.grouped_axis import GroupedAxis
from pipeplan.core.job import Job
from pipeplan.core.model import Model, Tie
from pipeplan.core.operators import INPUT, OperatorGraph
from pipeplan.core.plan import Plan
from pipeplan.costs.sharding.question import team_questions
from pipeplan.io.model_file import model_data, model_from_data
from pipeplan.solve import solve

FAST = Link(10**9, 1)


def gated() -> OperatorGraph:
    """A perceptron of 24 neurons, whose first matrix has a gate before what it multiplies."""
    _, between, narrow = pair(inner=24).operators
    wide = replace(linear("wide", INPUT, 8, 48, bias=48), groups={"out": (2, 2)}, loops={"out": 24, "in": 8})
    return OperatorGraph((wide, between, narrow), {INPUT: 80})


def test_former_plans_say_which_axes_are_split_group_by_group(tmp_path: Path) -> None:
    """Those without strategies: weight and bias with the loop, in lowest terms; other weights have an axis."""
    found = solve(perceptrons(graph=gated()), equal_devices(2, link=FAST), 4, teams=(2,), workers=1).plan
    shards = [(f"l{i}.wide.{name}", GroupedAxis(0, (1, 1))) for i in range(4) for name in ("weight", "bias")]
    stages = tuple(replace(stage, mesh=(), links=(), sharing=()) for stage in found.stages)
    plan = replace(found, strategies=(), stages=stages, shards=(shards[0], ("l0.narrow.weight", 1), *shards[1:]))
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    data = json.loads((tmp_path / "plan.json").read_text())
    assert data["shards"][0] == {"parameter": "l0.wide.weight", "axis": 0, "groups": [1, 1]}
    assert data["shards"][1] == {"parameter": "l0.narrow.weight", "axis": 1}
    data["shards"][0]["groups"] = [1]
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"shards\[0\].*one group is the whole axis"):
        Plan.load(tmp_path / "plan.json")


def test_groups_change_no_price() -> None:
    """A member has as much of a weight, and sends as much, whichever numbers these are."""
    found = []
    for groups in ({}, {"out": (1, 1)}, {"out": (2, 1)}):
        wide, *others = gated().operators
        graph = OperatorGraph((replace(wide, groups=groups), *others), {INPUT: 80})
        found.append(list(team_questions(perceptrons(graph=graph), equal_devices(2, link=FAST), Job(4, teams=(2,)))))
    plain, *grouped = ([(each.split, each.model) for each in questions] for questions in found)
    assert grouped == [plain, plain]


def test_model_files_keep_groups() -> None:
    """They are written beside the loops, and read back."""
    model = perceptrons(graph=gated())
    data = model_data(model)
    assert data["operators"]["pair"]["operators"][0]["groups"] == {"out": [2, 2]}
    assert model_from_data(data, "file") == model


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({"out": (3,)}, "loop 'out' has 1 group; give the relative lengths of two or more"),
        ({"out": (1, 0)}, "relative length of a group must be at least 1, not 0"),
        ({"outs": (1, 1)}, "loop 'outs' has groups and is not split; did you mean 'out'"),
        ({"out": (4, 1)}, "the 384 bytes of 'wide.weight' have no groups of lengths 4 : 1 along 'out'"),
    ],
)
def test_groups_that_cannot_be_are_refused(groups: dict[str, tuple[int, ...]], said: str) -> None:
    """A single group, one without length, those of another loop, and of weights that cannot be divided like them."""
    wide, *others = gated().operators
    with pytest.raises(InputError, match=said):
        OperatorGraph((replace(wide, groups=groups), *others))
    with pytest.raises(InputError, match="axis 1 has no group"):
        GroupedAxis(1, ())


@pytest.mark.parametrize("alike", [True, False])
def test_shared_weights_are_split_in_the_same_groups(alike: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that share a matrix have the same part of it, or all of it, however little another way gains."""
    monkeypatch.setattr("pipeplan.costs.sharding.ways.unlike", lambda rows, *_: range(len(rows)))
    monkeypatch.setattr("pipeplan.costs.sharding.together.Together._fewer", lambda _, rows, *__: rows)
    questions = list(team_questions(_shared(alike), equal_devices(2, link=FAST), Job(4, teams=(2,))))
    axes = {tuple(cuts(_shared(alike), each.split, i).get("wide.weight") for i in range(2)) for each in questions}
    assert axes == ({(None, None), (0, 0), (1, 1)} if alike else {(None, None), (1, 1)})


def _shared(alike: bool) -> Model:
    """Two layers that share their first matrix."""
    wide, *others = gated().operators
    weights = tuple(replace(each, shared=each.name == "wide.weight") for each in wide.weights)
    graphs = {
        name: OperatorGraph((replace(wide, weights=weights, groups={"out": groups}), *others), {INPUT: 80})
        for name, groups in (("first", (2, 2)), ("second", (1, 1) if alike else (2, 1)))
    }
    model, common = perceptrons(2, graph=gated()), weights[0].size
    layers = tuple(
        replace(layer, operators=name, parameters=layer.parameters - number * common)
        for number, (layer, name) in enumerate(zip(model.layers, graphs, strict=True))
    )
    return replace(model, layers=layers, operators=graphs, ties=(Tie(model.names, common),))
