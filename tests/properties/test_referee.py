"""Whole answers of `solve` against a referee that shares no code with the project (`tests/referee`)."""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import count, islice
from math import inf
from pathlib import Path
from typing import Any

import pytest

import referee
from pipeplan.core.job import Job
from referee.bridge import ask
from referee.chosen import chosen
from referee.documents import DEFAULTS
from referee.questions import SHORT, drawn, question
from referee.shrink import shrink
from referee.verdict import judge

OWN = Path(referee.__file__).parent
OUTSIDE = {"beside.py", "bridge.py", "collectives.py", "placed.py", "__main__.py"}
"""What stands between the referee and the project, and may import both."""


def disputes(numbers: Iterable[int], large: bool = False) -> list[str]:
    """Every disagreement on these questions, with the number that asks it again."""
    found = []
    for number in numbers:
        document = question(number, large)
        found += [f"question {number}: {fault}" for fault in judge(document, ask(document)).faults]
    return found


@pytest.mark.parametrize("path", sorted(OWN.glob("*.py")), ids=lambda path: path.stem)
def test_the_referee_imports_nothing_of_the_project(path: Path) -> None:
    """A rule that is wrong in the project is not wrong in the referee by import."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    named = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named |= {
        (node.module or "").partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom) and not node.level
    }
    relative = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.level}
    assert path.name in OUTSIDE or not {name for name in named if name.startswith("pipeplan")}
    assert path.name in OUTSIDE or "bridge" not in relative
    assert not {node.level for node in nodes if isinstance(node, ast.ImportFrom)} - {0, 1}


def test_every_field_of_a_job_is_drawn() -> None:
    """A new field of `Job` is one that the random questions ask about, too."""
    wanted = {field.name for field in fields(Job)}
    assert wanted == set(DEFAULTS) | {"batch"}
    asked = set().union(*(drawn(question(number)) for number in range(400)))
    assert asked == wanted


def test_every_sort_of_question_is_drawn() -> None:
    """All back ends, short limits and gaps; one to four nodes, both kinds of network, unequal bytes, ties, skips."""
    documents = [question(number) for number in range(400)]
    asked = [document["solve"] for document in documents]
    assert {each["backend"] for each in asked} == {"cpsat", "cbc", "exact"}
    assert {each["gap"] for each in asked} == {0.0, 0.1}
    assert {each["workers"] for each in asked} == {1, 2}
    assert SHORT in {each["time_limit"] for each in asked}
    clusters = [document["cluster"] for document in documents]
    assert {len(cluster["nodes"]) for cluster in clusters} == {1, 2, 3, 4}
    assert {cluster["overlap"] for cluster in clusters} == {False, True, "stream"}
    assert {len(cluster["devices"]) for cluster in clusters} == {1, 2, 3}
    kinds = [kind for cluster in clusters for kind in cluster["devices"].values()]
    assert set().union(*kinds) == {
        *("memory", "runtime", "speed", "speed_beside_collectives", "timed_as"),
        *("peak", "bandwidth", "efficiency", "overhead", "shard_overhead"),
    }
    faster = {_faster(cluster) for cluster in clusters if cluster["network"]}
    assert faster == {True, False}
    pins = [where for document in documents for _, where in document["job"].get("pin", ())]
    assert {where[0] == "d" for where in pins} == {True, False}
    models = [document["model"] for document in documents]
    assert {len({profile["device"] for profile in model["profiles"]}) for model in models} == {1, 2}
    assert {1, 2, 3} <= {len({profile["micro_batch"] for profile in model["profiles"]}) for model in models}
    links = [node["link"] for cluster in clusters for node in cluster["nodes"]]
    links += [cluster["network"] for cluster in clusters if cluster["network"]]
    assert {link.get("collective") for link in links} == {None, "halving", "tree"}
    assert any("ties" in model for model in models)
    assert any(len(layer["inputs"]) > 1 for model in models for layer in model["layers"])


def _faster(cluster: dict[str, Any]) -> bool:
    """Whether the network is faster than the first node's link."""
    inside, network = cluster["nodes"][0]["link"]["bandwidth"], cluster["network"]["bandwidth"]
    return (network or inf) > (inside or inf)


def test_a_question_in_dispute_is_made_small() -> None:
    """What the dispute does not need is left out or lowered; the dispute stays."""

    def faults(document: dict[str, Any]) -> list[str]:
        forward = [cost["forward"] for cost in document["model"]["profiles"][0]["costs"].values()]
        return [f"forwards of {sum(forward)}"] if sum(forward) > 4 and len(forward) > 1 else []

    small = shrink(question(3), faults)
    assert faults(small) and len(small["model"]["layers"]) == 2
    assert set(small["job"]) == {"batch"} and small["job"]["batch"] == 1
    assert sum(len(node["devices"]) for node in small["cluster"]["nodes"]) == 1


@pytest.mark.parametrize("numbers", [chosen("answers")[::2], chosen("answers")[1::2]], ids=len)
def test_answers_hold(numbers: Sequence[int]) -> None:
    """Time, memory, place in the space, bound and optimum are as the referee counts them."""
    assert disputes(numbers) == []


@pytest.mark.slow
def test_many_answers_hold() -> None:
    """The same on 400 other questions."""
    assert disputes(range(1000, 1400)) == []


@pytest.mark.slow
def test_answers_on_large_clusters_hold() -> None:
    """The same on 60 questions about clusters of up to ten devices."""
    assert disputes(range(60), large=True) == []


@pytest.mark.slow
def test_many_answers_with_one_step_of_delay_hold() -> None:
    """The same on 60 questions about gradients that are one step late."""
    late = (number for number in count(20_000) if question(number)["job"].get("staleness"))
    assert disputes(islice(late, 60)) == []
