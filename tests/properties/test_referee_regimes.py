"""Every regime of the search, entered through `solve` by lower thresholds, against the referee."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from random import Random
from typing import Any

import pytest

from helpers.quick import rarely
from pipeplan.costs.collectives import Ring
from pipeplan.search.any_order import AnyOrderNode
from pipeplan.search.graph.node import GraphNode
from pipeplan.search.nodes import layouts, least_ways
from pipeplan.search.nodes import tied_copies as copies
from pipeplan.search.nodes.aggregate import AggregateNode, TargetSchedule
from pipeplan.search.nodes.beside import Batch
from pipeplan.search.nodes.device_groups import RemainingGroupsNode
from pipeplan.search.nodes.joined_spaces import JoinedSpacesNode
from pipeplan.search.nodes.least_ways import RoundsNode
from pipeplan.search.nodes.partitions import PartitionsNode
from pipeplan.search.nodes.row_tables import RowTables
from pipeplan.search.nodes.shapes import ShapesNode
from pipeplan.search.space import in_flight as flights
from pipeplan.search.space.in_flight import InFlightBox
from pipeplan.search.space.space import Space
from pipeplan_formulations.partition import listing
from referee.beside import AT_ONCE
from referee.bridge import ask
from referee.operators import in_equal_teams
from referee.questions import question
from referee.rounds import in_rounds
from referee.verdict import judge

space = import_module("pipeplan.search.space.space")
family_node = import_module("pipeplan.search.nodes.family")
network = import_module("pipeplan.costs.network")
solving = import_module("pipeplan.solve.solving")
shapes = import_module("pipeplan.search.nodes.device_groups")


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
    change : callable
        Makes it likelier that they do.
    first : int
        The number of a small question that does.
    """

    owner: Any
    name: str
    thresholds: tuple[tuple[Any, str, Any], ...] = ()
    exact: bool = True
    when: Callable[[tuple[Any, ...], Any], bool] = field(default=lambda arguments, result: True)
    suits: Callable[[dict[str, Any]], bool] = field(default=lambda document: True)
    change: Callable[[dict[str, Any]], None] = field(default=lambda document: None)
    first: int = 0


def devices(document: dict[str, Any]) -> int:
    """Of all nodes."""
    return sum(len(node["devices"]) for node in document["cluster"]["nodes"])


def free(document: dict[str, Any]) -> bool:
    """Devices in any order, three of them at least."""
    return "order" not in document["job"] and devices(document) > 2


def step(document: dict[str, Any]) -> bool:
    """Asks for the time of a step."""
    return "objective" not in document["job"]


def families(document: dict[str, Any]) -> bool:
    """Asks for the time of a step of families, with devices in any order."""
    return step(document) and free(document) and "any" not in document["job"].get("schedules", ())


def tied(document: dict[str, Any]) -> bool:
    """Some layers share weights, and there are several devices."""
    return "ties" in document["model"] and free(document)


def apart(document: dict[str, Any]) -> None:
    """The ends share weights, and lie on stages of their own."""
    names = [layer["name"] for layer in document["model"]["layers"]]
    first = document["model"]["layers"][0]
    first["parameters"] = first["parameters"] or 8
    document["model"]["ties"] = [{"layers": [names[0], names[-1]], "parameters": first["parameters"]}]
    document["job"] |= {"depths": [2, 3], "replicas": [1, 2], "pin": []}


def choosing(document: dict[str, Any]) -> None:
    """In-flight counts are a choice, on two stages or more."""
    document["cluster"]["overlap"] = True
    document["job"] |= {"schedules": ["1f1b", "gpipe"], "batch": 6, "depths": [2, 3], "micro_batches": []}
    document["job"] |= {"intra_layer": False, "extrapolate": True}


def late(document: dict[str, Any]) -> None:
    """Gradients are one step late, on devices in any order."""
    schedules = [name for name in document["job"].get("schedules", ()) if name.startswith("1f1b")]
    document["job"] |= {"objective": "period", "staleness": 1, "schedules": schedules, "intra_layer": False}
    document["job"]["zero"] = [level for level in document["job"].get("zero", ()) if level < 2]


def loops(document: dict[str, Any]) -> None:
    """Devices have one stage each, or two."""
    job = document["job"]
    in_rounds(Random(f"rounds {len(document['model']['layers'])}, {job['batch']}"), document)
    for name in ("objective", "intra_layer", "staleness", "slices", "strategy", "pin", "order", "schedules"):
        job.pop(name, None)
    document["cluster"]["overlap"] = True
    job["chunks"] = [1, 2]


def loops_of_teams(document: dict[str, Any]) -> None:
    """The same of teams of one size."""
    in_equal_teams(document)
    loops(document)


def without_teams(document: dict[str, Any]) -> None:
    """Devices are alone."""
    document["job"] |= {"teams": [1], "intra_layer": False}


def beside(change: Callable[[dict[str, Any]], None], document: dict[str, Any]) -> None:
    """As changed, by two workers."""
    change(document)
    document["solve"]["workers"] = 2


def every_width(_per_node: int, most: int) -> list[int]:
    """As `even_widths`, with no number of replicas left out."""
    return [*range(1, most + 1)]


AGGREGATES = ((space, "FEW", 0), (space, "PAIRS", 0))
UNLISTED = (listing, "MOST", 0)
MANY = (*AGGREGATES, (space, "even_widths", every_width), *((each, "MANY_UNITS", 0) for each in (space, least_ways)))
LARGE = (*AGGREGATES, (layouts, "SMALL_CELLS", 0))
REGIMES = {
    "tree of aggregates": Regime(AggregateNode, "_below", AGGREGATES, suits=free, first=21),
    "large aggregates": Regime(
        AggregateNode,
        "advance",
        LARGE,
        exact=False,
        when=lambda own, _: not own[0].small,
        suits=free,
        first=170,
    ),
    "targets": Regime(TargetSchedule, "reached", LARGE, exact=False, suits=free, first=65),
    "joined spaces": Regime(
        JoinedSpacesNode,
        "advance",
        AGGREGATES,
        when=lambda own, _: own[1].cutoff is not None,
        suits=families,
        change=in_equal_teams,
        first=170,
    ),
    "large joined spaces": Regime(
        JoinedSpacesNode,
        "advance",
        LARGE,
        exact=False,
        when=lambda _, step: not step.nodes,
        suits=families,
        change=in_equal_teams,
        first=38,
    ),
    "certain copies": Regime(
        copies, "_with_copy", AGGREGATES, suits=lambda own: free(own) and step(own), change=apart, first=170
    ),
    "certain copies of large aggregates": Regime(
        copies,
        "_with_copy",
        LARGE,
        exact=False,
        suits=lambda own: free(own) and step(own),
        change=apart,
        first=161,
    ),
    "boxes of counts": Regime(
        InFlightBox,
        "split",
        ((flights, "FEW", 1),),
        suits=lambda own: free(own) and step(own),
        change=choosing,
        first=157,
    ),
    "many shapes": Regime(
        Space,
        "_more_than",
        ((space, "MANY", 0), (space, "PAIRS", 0)),
        when=lambda own, many: own[1] == 0 and many,
        first=37,
    ),
    "shapes without number": Regime(
        RemainingGroupsNode,
        "advance",
        (*AGGREGATES, (shapes, "LOT", 2)),
        suits=lambda own: own["job"].get("order") == "given",
        first=130,
    ),
    "many partitions, late gradients": Regime(
        family_node.FamilyNode, "advance", (UNLISTED,), suits=free, change=late, first=39
    ),
    "boxes of counts, late gradients": Regime(
        InFlightBox,
        "halves",
        ((flights, "FEW", 1),),
        suits=lambda own: free(own) and step(own),
        change=lambda document: (choosing(document), late(document), document["job"].update(batch=3))[-1],
        first=157,
    ),
    "listed partitions, late gradients": Regime(PartitionsNode, "advance", suits=free, change=late, first=39),
    "sorted shapes": Regime(ShapesNode, "advance", when=lambda _, step: bool(step.nodes), first=37),
    "enumerated shapes": Regime(shapes.DeviceGroupsNode, "advance", ((space, "PAIRS", 0),), first=37),
    "listed partitions": Regime(PartitionsNode, "advance", first=39),
    "many partitions": Regime(family_node.FamilyNode, "advance", (UNLISTED,), first=39),
    "rows of many devices": Regime(
        RowTables, "closer", MANY, when=lambda arguments, result: arguments[0]._space.evenly, suits=free, change=loops
    ),
    "rows of many teams": Regime(RoundsNode, "_of_rows", MANY, suits=free, change=loops_of_teams, first=30),
    "no solver": Regime(
        family_node.FamilyNode,
        "advance",
        (UNLISTED, (family_node, "CELLS", 0)),
        exact=False,
        suits=step,
        first=39,
    ),
    "many stages of tied weights": Regime(
        Ring,
        "lower_bound",
        ((network, "PAIRED", 1),),
        suits=lambda own: tied(own) and step(own),
        first=170,
    ),
    "graph": Regime(GraphNode, "advance", suits=lambda own: not step(own), first=282),
    "any order": Regime(AnyOrderNode, "advance", suits=lambda own: "any" in own["job"].get("schedules", ())),
}
REGIMES |= {
    f"{name}, some beside": replace(
        REGIMES[name],
        owner=Batch,
        name="answer",
        thresholds=(*REGIMES[name].thresholds, *AT_ONCE),
        when=lambda _, answer: answer is not None,
        change=partial(beside, REGIMES[name].change),
    )
    for name in ("joined spaces", "large joined spaces", "rows of many teams")
}
REGIMES["large aggregates, some beside"] = Regime(
    Batch,
    "answer",
    (*LARGE, *AT_ONCE, (solving, "WITH_BEAMS", 0)),
    exact=False,
    when=lambda _, answer: answer is not None,
    suits=free,
    change=partial(beside, without_teams),
    first=46,
)
REGIMES |= {
    f"{name}, late gradients": replace(REGIMES[name], change=late)
    for name in ("tree of aggregates", "large aggregates")
}

DEAR = "boxes of counts, late gradients"
"""A regime whose questions take seconds."""


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


def disputes(
    monkeypatch: pytest.MonkeyPatch, regime: Regime, wanted: int, seed: int = 0, tried: int = 500
) -> list[str]:
    """Disagreements on the first questions that enter the regime; that so many do is checked."""
    found, inside = [], 0
    calls = entered(monkeypatch, regime)
    for number in range(seed, seed + tried):
        document = question(number)
        if not regime.suits(document):
            continue
        regime.change(document)
        calls.clear()
        answer = ask(document)
        inside += bool(calls)
        if calls:
            found += [f"question {number}: {fault}" for fault in judge(document, answer, regime.exact).faults]
        if inside == wanted:
            return found
    pytest.fail(f"{inside} of {tried} questions entered the regime; {wanted} should")


@pytest.mark.parametrize("name", [rarely(each) if each == DEAR else each for each in REGIMES])
def test_an_answer_of_every_regime_holds(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Whichever way the search takes, what it answers is as the referee counts it."""
    assert disputes(monkeypatch, REGIMES[name], 1, REGIMES[name].first) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", REGIMES)
def test_many_answers_of_every_regime_hold(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The same on more questions."""
    assert disputes(monkeypatch, REGIMES[name], 8, 10_000, 5_000) == []
