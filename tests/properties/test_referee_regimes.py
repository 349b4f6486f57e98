"""Every regime of the search, entered through `solve` by lower thresholds, against the referee."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pytest

from pipeplan.graph.node import GraphNode
from pipeplan.search import copies, flights, layouts, shapes
from pipeplan.search.any_order import AnyOrderNode
from pipeplan.search.climb import Climb
from pipeplan.search.flights import Box
from pipeplan.search.lumps import LumpNode
from pipeplan.search.rest import RestNode
from pipeplan.search.space import Space
from pipeplan.search.tilings import TilingsNode
from referee.bridge import ask
from referee.questions import question
from referee.verdict import judge

space = import_module("pipeplan.search.space")
family_node = import_module("pipeplan.search.family_node")
network = import_module("pipeplan.network")
rest = import_module("pipeplan.search.rest")

TRIED = 400
"""Questions that are asked at most until enough of them have entered a regime."""


@dataclass(frozen=True)
class Regime:
    """Thresholds that are changed, and what runs in the regime only.

    Attributes
    ----------
    owner, name : object, str
        The function or method whose calls show that the regime was entered, where ``when`` holds for its result.
    exact : bool
        Whether the search finds the best plan there, not only a bound on it.
    suits : callable
        Questions that may enter it.
    """

    owner: Any
    name: str
    thresholds: tuple[tuple[Any, str, int], ...] = ()
    exact: bool = True
    when: Callable[[tuple[Any, ...], Any], bool] = field(default=lambda arguments, result: True)
    suits: Callable[[dict[str, Any]], bool] = field(default=lambda document: True)
    large: bool = False


def several(document: dict[str, Any]) -> bool:
    """Two nodes or more, and devices in any order."""
    return len(document["cluster"]["nodes"]) > 1 and "order" not in document["job"]


def step(document: dict[str, Any]) -> bool:
    """Asks for the time of a step."""
    return "objective" not in document["job"]


LUMPS = (space, "FEW", 0)
LARGE = (LUMPS, (layouts, "SMALL_CELLS", 0))
REGIMES = {
    "tree of lumps": Regime(LumpNode, "_below", (LUMPS,), large=True),
    "large lumps": Regime(LumpNode, "advance", LARGE, exact=False, when=lambda own, _: not own[0].small),
    "climb": Regime(Climb, "up", LARGE, exact=False),
    "tilings": Regime(TilingsNode, "advance", LARGE, exact=False, suits=several),
    "certain copies": Regime(copies, "_with_copy", (LUMPS,), suits=lambda own: "ties" in own["model"]),
    "certain copies of large lumps": Regime(
        copies, "_with_copy", LARGE, exact=False, suits=lambda own: "ties" in own["model"]
    ),
    "boxes of counts": Regime(Box, "split", ((flights, "FEW", 1),), suits=step),
    "many shapes": Regime(Space, "_more_than", ((space, "MANY", 0),), when=lambda own, many: own[1] == 0 and many),
    "shapes without number": Regime(
        RestNode, "advance", (LUMPS, (rest, "LOT", 2)), suits=lambda own: own["job"].get("order") == "given"
    ),
    "no solver": Regime(shapes, "FamilyNode", ((family_node, "CELLS", 0),), exact=False, suits=step),
    "many stages of tied weights": Regime(
        network, "least_alone", ((network, "PAIRED", 1),), suits=lambda own: "ties" in own["model"]
    ),
    "graph": Regime(GraphNode, "advance"),
    "any order": Regime(AnyOrderNode, "advance"),
    "ten devices": Regime(LumpNode, "advance", large=True),
}


def entered(monkeypatch: pytest.MonkeyPatch, regime: Regime) -> list[bool]:
    """Lower the thresholds; the list grows whenever the regime is entered."""
    calls: list[bool] = []
    original = getattr(regime.owner, regime.name)

    def spy(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        if regime.when(arguments, result):
            calls.append(True)
        return result

    monkeypatch.setattr(regime.owner, regime.name, spy)
    for module, name, value in regime.thresholds:
        monkeypatch.setattr(module, name, value)
    return calls


def disputes(monkeypatch: pytest.MonkeyPatch, regime: Regime, wanted: int, seed: int = 0) -> list[str]:
    """Disagreements on the first questions that enter the regime; that so many do is checked."""
    found, inside = [], 0
    calls = entered(monkeypatch, regime)
    for number in range(seed, seed + TRIED):
        document = question(number, regime.large)
        if not regime.suits(document):
            continue
        calls.clear()
        answer = ask(document)
        inside += bool(calls)
        if calls:
            found += [f"question {number}: {fault}" for fault in judge(document, answer, regime.exact).faults]
        if inside == wanted:
            return found
    pytest.fail(f"{inside} of {TRIED} questions entered the regime; {wanted} should")


@pytest.mark.parametrize("name", REGIMES)
def test_a_few_answers_of_every_regime_hold(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Whichever way the search takes, what it answers is as the referee counts it."""
    assert disputes(monkeypatch, REGIMES[name], 3 if REGIMES[name].large else 6) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", REGIMES)
def test_many_answers_of_every_regime_hold(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The same on more questions."""
    monkeypatch.setattr("test_referee_regimes.TRIED", 5000, raising=False)
    assert disputes(monkeypatch, REGIMES[name], 60, 10_000) == []
