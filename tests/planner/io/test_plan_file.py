"""Plans as JSON: versioned, checked for lengths and indices, orders as text."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.replicated import replicated_answer
from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.core.plan import MemoryParts, Plan, PlanStage
from pipeplan.core.schedule import Schedule
from pipeplan.core.validate import validate_plan
from pipeplan.costs.chain import UNLIMITED
from pipeplan.io.plan_file import plan_data, plan_from_data, read_plan
from pipeplan.simulate import simulate


def plan() -> Plan:
    """Two stages on two devices, two micro-batches."""
    stages = tuple(
        PlanStage((name,), (i,), 10, 20, 2, MemoryParts(weights=5, gradients=5)) for i, name in enumerate("ab")
    )
    return Plan(
        model="m", fingerprint="f", cluster="c", device_kinds=("k", "l"), micro_batch=4, micro_batches=2,
        optimizer="sgd", stages=stages,
        schedule=Schedule.from_text("gpipe", ["0F0 0F1 0B0 0B1 0U", "1F0 1F1 1B0 1B1 1U"]),
        ranks=(0, 1), step_time=96, bound=90,
        pipeline=Pipeline(
            (Stage(10, 20, resident=10), Stage(10, 20, resident=10)), ((0,), (1,)),
            ((Transfer(3, 2, 1, ("d0 to d1",)),),), ((Transfer(3, 2, 1, ("d1 to d0",)),),),
            Overlap.COPY, (0, 0), (UNLIMITED, 2**40),
        ),
    )  # fmt: skip


def test_save_and_load(tmp_path: Path) -> None:
    """A plan saved is the plan loaded, an unlimited memory included."""
    plan().save(tmp_path / "plan.json")
    assert Plan.load(str(tmp_path / "plan.json")) == plan()
    data = json.loads((tmp_path / "plan.json").read_text())
    assert data["format"] == "pipeplan-plan/4"
    assert data["schedule"]["orders"][0] == "0F0 0F1 0B0 0B1 0U"


def test_teams_are_saved(tmp_path: Path) -> None:
    """Unlike teams and the layers whose output they split come back; a plan without any is written as before."""
    stages = tuple(replace(stage, team=team) for stage, team in zip(plan().stages, (4, 2), strict=True))
    own = replace(plan(), stages=stages, shards=(("a.weight", 0),), sequence=("a",))
    own = replace(own, parallelism=("sequence",))
    own.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == own
    plan().save(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    assert "sequence" not in data and "team" not in data["stages"][0]


def test_one_team_for_all_stages_is_read(tmp_path: Path) -> None:
    """An older file has the size of teams once."""
    data = broken(team=2, shards=[{"parameter": "a.weight", "axis": 0}])
    (tmp_path / "plan.json").write_text(json.dumps(data))
    assert Plan.load(tmp_path / "plan.json").teams == (2, 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sequence": ["a"]}, "splits 1 output along tokens, and has no teams"),
        ({"vocabulary": "b"}, "splits the loss behind 'b' along its classes, and no team"),
        ({"team": 2, "shards": [{"parameter": "a.weight", "axis": 0}], "sequence": ["c"]}, "names 'c', which is not"),
        ({"team": 2, "shards": [{"parameter": "a.weight", "axis": 0}], "sequence": ["a", "a"]}, "'a' 2 times"),
        ({"team": 2, "context": {"products": ["a.weight"]}}, "parts of the tokens, and splits no output along tokens"),
        (
            {"team": 2, "sequence": ["a"], "context": {"attention": [{"layer": "c", "by": "keys"}]}},
            "its context names 'c', which is not",
        ),
        (
            {"team": 2, "sequence": ["a"], "shards": [{"parameter": "a.weight", "axis": 0}]}
            | {"context": {"products": ["a.weight"]}},
            "'a.weight' is shared out, and its context has it whole",
        ),
    ],
)
def test_tokens_that_cannot_be_split_are_named(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Outputs are split in plans with teams only, and each layer is named once."""
    (tmp_path / "plan.json").write_text(json.dumps(broken(**changes)))
    with pytest.raises(InputError, match=said):
        Plan.load(tmp_path / "plan.json")


def test_a_plan_of_version_2_has_no_buckets(tmp_path: Path) -> None:
    """A file from before buckets is read as it was meant: all gradients are summed behind the last backward."""
    data = broken(format="pipeplan-plan/2")
    for stage in data["pipeline"]["stages"]:
        del stage["buckets"]
    (tmp_path / "plan.json").write_text(json.dumps(data))
    assert Plan.load(tmp_path / "plan.json") == plan()


def test_a_plan_of_version_3_gathers_in_its_updates(tmp_path: Path) -> None:
    """A file in which gathers are parts of updates takes as long as it was planned to."""
    data = broken(format="pipeplan-plan/3")
    data["pipeline"]["stages"][0]["gather"] = 1
    (tmp_path / "plan.json").write_text(json.dumps(data))
    assert Plan.load(tmp_path / "plan.json") == plan()


def broken(**changes: Any) -> dict[str, Any]:
    """The plan's data with some fields replaced; a dotted path with __ for the dots."""
    data = json.loads(json.dumps(plan_data(plan())))
    for path, value in changes.items():
        *parents, last = path.split("__")
        here = data
        for part in parents:
            here = here[part]
        here[last] = value
    return data


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "pipeplan-plan/1"}, r"not a plan that this version reads: it has 'pipeplan-plan/1'"),
        ({"format": "pipeplan-plan/9"}, r"not a plan that this version reads: it has 'pipeplan-plan/9'"),
        ({"ranks": [0]}, r"schedule\.orders: has 2 entries and needs 1, one per rank"),
        ({"ranks": [0, 7]}, r"ranks: there is no number 7, they end at 1"),
        ({"pipeline__placement": [[0], [0, 1]]}, r"pipeline\.placement\[1\]: has ranks \[0, 1\] for 1 devices"),
        ({"pipeline__placement": [[0], [2]]}, r"pipeline\.placement\[1\]: there is no number 2, they end at 1"),
        ({"pipeline__returns": [[]]}, r"pipeline\.returns\[0\]: has 0 entries and needs 1, the least common multiple"),
        ({"pipeline__placement": [0, 1]}, r"pipeline\.placement\[0\]: should be a list"),
        ({"pipeline__transfers": []}, r"pipeline\.transfers: has 0 entries and needs 1"),
        (
            {"schedule__orders": ["0F0 0X1", "1F0 1G"]},
            r"(?s)schedule\.orders\[0\]: '0X1' .*schedule\.orders\[1\]: '1G'",
        ),
        ({"pipeline__overlap": "sometimes"}, r"pipeline\.overlap: 'sometimes' is not a valid Overlap"),
        (
            {"micro_batch": 0, "stepp_time": 3},
            r"(?s)micro_batch: .*stepp_time: unknown field; did you mean 'step_time'",
        ),
        ({"bound": "90"}, r"bound: should be a whole number, found '90'"),
    ],
)
def test_a_broken_plan_is_refused(changes: dict[str, Any], message: str) -> None:
    """Wrong versions, lengths, indices, actions and fields are named with their paths."""
    with pytest.raises(InputError, match=message):
        plan_from_data(broken(**changes), "plan.json")


def test_what_is_no_plan_at_all() -> None:
    """A file without the format says so, rather than listing every field it lacks."""
    with pytest.raises(InputError, match="it has no format"):
        plan_from_data({"layers": []}, "model.json")
    with pytest.raises(InputError, match="expected fields and values at the top, found a list"):
        plan_from_data([1], "list.json")


def test_replicas_survive(tmp_path: Path) -> None:
    """Devices, transfers of every pair, recomputed layers, in-flight counts and reductions come back as they were."""
    plan, model, cluster = replicated_answer()
    plan.save(tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    assert again == plan
    assert simulate(again.schedule, again.pipeline) == simulate(plan.schedule, plan.pipeline)
    validate_plan(again, model, cluster)


def test_two_lanes_survive() -> None:
    """A two-lane schedule comes back as one."""
    two = replace(plan(), schedule=replace(plan().schedule, two_lanes=True))
    assert plan_from_data(json.loads(json.dumps(plan_data(two))), "x").schedule.two_lanes
