"""Token slices against the referee: questions in every regime, and mutations that it must notice."""

from collections.abc import Callable
from importlib import import_module
from itertools import count, islice
from typing import Any

import pytest

from helpers.noticed import noticed
from pipeplan.core.slicing import SlicedLayer
from pipeplan.costs import slices as costs_of_slices
from pipeplan.costs import table
from pipeplan.schedules import slices as families
from pipeplan.search.nodes.aggregate import AggregateNode
from pipeplan.search.nodes.device_groups import DeviceGroupsNode
from pipeplan.search.nodes.family import FamilyNode
from pipeplan.search.nodes.shapes import ShapesNode
from pipeplan.search.space import lower_bounds
from pipeplan_formulations.partition import listing
from referee.bridge import ask
from referee.questions import question
from referee.verdict import judge

space = import_module("pipeplan.search.space.space")


def sliced(document: dict[str, Any]) -> bool:
    """Asks about slices, and allows them."""
    job = document["job"]
    return max(job.get("slices", [1])) > 1 and job.get("objective") != "bottleneck" and "order" not in job


def roomy(document: dict[str, Any]) -> None:
    """Slices only, two devices at least, and nothing that forbids or limits them."""
    job = document["job"]
    kind = min(document["cluster"]["devices"])
    node = {"devices": [{"kind": kind, "count": 1}] * 3, "link": {"bandwidth": 10**9}}
    document["cluster"] |= {"nodes": [node], "network": None, "overlap": True}
    document["job"] = {"batch": 2, "slices": [4], "extrapolate": True, "recompute": "none", "replicas": [1]}
    document["job"] |= {name: job[name] for name in ("optimizer", "overlap_reduction") if name in job}
    document["solve"] |= {"gap": 0.0, "time_limit": 60.0, "backend": "cpsat"}
    for own in document["cluster"]["devices"].values():
        own.pop("memory", None)


def narrow(document: dict[str, Any]) -> None:
    """The same, with memory for some plans only."""
    roomy(document)
    costs = document["model"]["profiles"][0]["costs"].values()
    whole = sum(4 * layer["parameters"] for layer in document["model"]["layers"])
    document["job"]["memory"] = whole + sum(2 * cost["saved"] + cost["workspace"] for cost in costs) + 1


def in_halves(document: dict[str, Any]) -> None:
    """The same as `roomy` with backwards in two parts, which have times."""
    roomy(document)
    document["job"]["schedules"] = ["zb-h1-slices"]
    for cost in (cost for profile in document["model"]["profiles"] for cost in profile["costs"].values()):
        cost["input_gradient"] = cost["input_gradient"] or cost["backward"]


def unmeasured(document: dict[str, Any]) -> None:
    """Roomy, with whole sequences measured only."""
    roomy(document)
    document["model"]["slice_profiles"] = []


REGIMES: dict[str, tuple[Any, tuple[tuple[Any, str, int], ...]]] = {
    "shapes": (ShapesNode, ()),
    "device groups": (DeviceGroupsNode, ((space, "PAIRS", 0),)),
    "families": (FamilyNode, ((space, "PAIRS", 0), (listing, "MOST", 0))),
    "aggregates": (AggregateNode, ((space, "PAIRS", 0), (space, "FEW", 0))),
}


def slices_of(node: Any) -> int:
    """Slices of the plans of a node."""
    return int(node.space.model.slices if hasattr(node, "space") else node.candidate.chain.slices)


@pytest.mark.parametrize("asked", [2, pytest.param(15, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", REGIMES)
def test_every_regime_is_entered_with_slices(monkeypatch: pytest.MonkeyPatch, name: str, asked: int) -> None:
    """The referee agrees with answers of each kind of node of a sliced space."""
    node, thresholds = REGIMES[name]
    entered: set[int] = set()
    advance = node.advance

    def noted(own: Any, search: Any) -> Any:
        entered.add(slices_of(own))
        return advance(own, search)

    monkeypatch.setattr(node, "advance", noted)
    for owner, threshold, value in thresholds:
        monkeypatch.setattr(owner, threshold, value)
    suited = (document for number in count() if sliced(document := question(number)))
    for document in islice((each for each in suited if "teams" not in each["job"]), asked):
        if asked < 9:  # nothing that forbids plans
            roomy(document)
        assert judge(document, ask(document), exact=name != "aggregates").faults == []
    assert max(entered) > 1


def without_growth(mean: Any, shares: Any, count: int) -> Any:
    """As if all slices took equally long."""
    return mean * count, mean


def one_more(name: str, count: int, replicas: Any, micro_batches: int) -> tuple[int, ...]:
    """As if a stage held one slice more than it must."""
    stages = range(len(replicas))
    return tuple(min(len(replicas) - s + count, micro_batches * count) for s in stages)


def in_time(stage: int, own: Any, count: int, ahead: int, split: bool, order: Any = families._order) -> Any:
    """As if each weight gradient followed its own input gradient."""
    late = order(stage, own, count, ahead, split)
    weights = {action[1:]: action for action in late if action.kind == "W"}
    rest = [action for action in late if action.kind != "W"]
    return [each for action in rest for each in (action, *[weights[action[1:]]] * (action.kind == "I"))]


def without_looking_back(shares: Any, *_: Any) -> Any:
    """As if the last of measured slices took as long as the first."""
    return tuple((0,) * 4 for _ in next(iter(shares.values())))


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "change", "first"),
    [
        (table, "_of_slices", without_growth, roomy, 0),
        (SlicedLayer, "kept", lambda *_: 0, narrow, 0),
        (costs_of_slices, "one_by_one", lambda _model, costs, _kind: costs, unmeasured, 65),
        (families, "_counts", one_more, roomy, 65),
        (families, "_order", in_time, in_halves, 0),
        (costs_of_slices, "measured", lambda *_: ((), {}), roomy, 88),
        (costs_of_slices, "shares_at", without_looking_back, roomy, 379),
    ],
)
def test_wrong_slices_are_noticed(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, wrong: Callable[..., Any], change: Any, first: int
) -> None:
    """Attention that does not grow, keys, operators as one, more held, weight gradients in time, measured slices."""
    monkeypatch.setattr(owner, name, wrong)
    assert noticed(sliced, change, first)


def test_bounds_whose_first_slice_takes_all_the_time_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where cheap bounds count the whole micro-batch ahead, better plans are not searched."""
    init = lower_bounds.LowerBounds._set
    monkeypatch.setattr(
        lower_bounds.LowerBounds, "_set", lambda own, *asked, first, splits=False: init(own, *asked, 1.0, splits)
    )
    monkeypatch.setattr(space, "PAIRS", 0)
    monkeypatch.setattr(space, "FEW", 10**6)
    assert "above the optimum" in noticed(sliced, roomy)
