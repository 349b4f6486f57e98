"""Stages with teams of unlike sizes against the referee, which tries every way to fill the nodes.

The two ways in which mixes are searched are entered by small questions: a tree over rows of modes, and one bound for
all ways to fill the nodes.
"""

from importlib import import_module
from random import Random
from typing import Any

import pytest

from helpers.quick import QUICK
from pipeplan.core.model import Model
from referee import questions
from referee.bridge import ask
from referee.questions import question
from referee.verdict import judge

NODES = ((3,), (4,), (2, 2), (3, 1), (2, 2, 1), (3, 3), (5,))
"""Devices of the nodes of drawn clusters."""
TREE, LARGE = "tree", "large"

space = import_module("pipeplan.search.space.mixed")


def of_unlike_sizes(number: int) -> dict[str, Any]:
    """A random question with teams of unlike sizes on few devices."""
    document, random = question(number), Random(number)
    cluster, job = document["cluster"], document["job"]
    kinds, link = sorted(cluster["devices"]), cluster["nodes"][0]["link"]
    cluster["nodes"] = [
        {"devices": [{"kind": random.choice(kinds) if random.random() < 0.2 else kinds[0], "count": 1}] * count}
        | {"link": link if random.random() < 0.7 else {"bandwidth": random.choice((10**8, 4 * 10**9))}}
        for count in random.choice(NODES)
    ]
    cluster["network"] = cluster["network"] or {"bandwidth": random.choice((10**8, 10**9)), "latency": 3}
    if len(cluster["nodes"]) == 1:
        cluster["network"] = None
    kept = {
        "batch",
        "optimizer",
        "schedules",
        "overlap_reduction",
        "recompute",
        "memory",
        "equal_replicas",
        "objective",
    }
    document["job"] = {name: job[name] for name in sorted(kept & set(job))} | {
        "extrapolate": True,
        "unlike_teams": True,
    }
    document["job"] |= {"teams": random.choice(([1, 2], [1, 2], [1, 3], [2, 3], [1, 2, 4])), "zero": [0, 1]}
    document["job"]["teams"] = [size for size in document["job"]["teams"] if size == 1 or _fits(cluster, size)]
    if len(document["job"]["teams"]) < 2:
        document["job"]["teams"] = [1, 2]
    document["job"]["schedules"] = [each for each in document["job"].get("schedules", ()) if each != "any"]
    if not document["job"]["schedules"] or cluster["overlap"] is False:
        del document["job"]["schedules"]
    if random.random() < 0.5:
        document["job"].pop("memory", None)
    if random.random() < 0.5:  # mostly better with a team and a single device
        _on_three(document, [2] if random.random() < 0.5 else [])
    document["solve"] |= {"time_limit": 120.0, "gap": 0.0}
    return document


def _on_three(document: dict[str, Any], depths: list[int]) -> None:
    """Stages without replicas on a node of three devices."""
    cluster, kind = document["cluster"], min(document["cluster"]["devices"])
    node = {"devices": [{"kind": kind, "count": 1}] * 3, "link": {"bandwidth": 4 * 10**9}}
    cluster |= {"nodes": [node], "network": None}
    document["job"] |= {"teams": [1, 2], "depths": depths, "replicas": [1]}


def _fits(cluster: dict[str, Any], size: int) -> bool:
    return any(sum(group["count"] for group in node["devices"]) >= size for node in cluster["nodes"])


def disputes(first: int, count: int, way: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], int]:
    """Every disagreement on questions that are not refused, and the number of plans with teams of unlike sizes."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    if way == LARGE:
        monkeypatch.setattr(space, "MOST", 0)
    found, mixed = list[str](), 0
    for number in range(first, first + 3 * count):
        document = of_unlike_sizes(number)
        answer = ask(document)
        count -= answer["outcome"] != "refused"
        mixed += len(set(answer.get("teams", ()))) > 1
        if way != LARGE or answer["outcome"] != "undecided":  # it need not find a plan
            found += [f"question {number}: {each}" for each in judge(document, answer, exact=way != LARGE).faults]
        if not count:
            break
    assert not count
    return found, mixed


@pytest.mark.parametrize("way", [TREE, LARGE])
def test_mixes_are_all_tried(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No bound is above the best of all mixes; where these are few, the best one is found."""
    found, mixed = disputes(16, 3 if QUICK else 5, way, monkeypatch)
    assert found == []
    assert mixed


def test_parts_of_tokens_are_only_for_the_layer_that_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the next layer reads the batch, what crosses the cut to a later one is whole; otherwise it is noticed."""
    monkeypatch.setattr(questions, "TEAMS", 1.0)
    document = of_unlike_sizes(1137)
    document["job"] |= {"zero": [0], "schedules": ["1f1b-sno"], "micro_batches": [6]}
    assert judge(document, ask(document), exact=False).faults == []
    monkeypatch.setattr(Model, "hands_over", lambda own, cut: own.crossing(cut) == (cut,))
    assert judge(document, ask(document), exact=False).faults


@pytest.mark.slow
@pytest.mark.parametrize("way", [TREE, LARGE])
def test_many_mixes_are_all_tried(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on 40 other questions."""
    assert disputes(1000, 40, way, monkeypatch)[0] == []
