"""Random strategies of layers, searched or not, as the referee counts them: all that a device has of a layer."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from random import Random

import pytest

from helpers.quick import part, rarely
from pipeplan.core.errors import InputError
from pipeplan.core.strategies import WHOLE, LayerStrategies, Placements
from pipeplan.costs.sharding.coordinates import COORDINATES
from pipeplan.costs.sharding.device_costs import device_cost
from pipeplan.costs.sharding.layer_ways import main_strategies
from pipeplan.costs.sharding.members import MeshMembers
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.question import every_team
from pipeplan.costs.sharding.shapes import fitting
from pipeplan.costs.sharding.ties import shared_bytes
from referee import questions
from referee.bridge import as_strategies, objects
from referee.chosen import chosen
from referee.documents import Document
from referee.strategies import Strategies
from referee.teams import Teams

FIGURES = ("forward", "backward", "input_gradient", "weight_gradient", "update", "saved", "output", "workspace")
NODES = ((2, 2), (4, 1), (1, 4), (2, 6), (6, 2), (3, 4), (4, 3))
"""Nodes and devices of each that a team has."""
DRAWN = {"TEAMS": 1.0, "BLOCKS": 0.3, "NAMED": 0.0}
"""Shares of questions, all of which are about teams."""
FEW = 12
"""Signatures of an operator up to which all choices of a layer are priced together."""


def asked(number: int) -> Document:
    """A random question about teams, half of them on more devices."""
    document, random = questions.question(number), Random(f"nodes {number}")
    if random.random() < 0.6:
        cluster, (nodes, count) = document["cluster"], random.choice(NODES)
        node = cluster["nodes"][0]
        cluster["nodes"] = [node | {"devices": [node["devices"][0] | {"count": 1}] * count}] * nodes
        cluster["network"] = cluster["network"] or {"bandwidth": random.choice((10**8, 4 * 10**9)), "latency": 3}
        document["job"] |= {"teams": [nodes * count], "pin": []}
    return document


def members(document: Document, random: Random) -> Iterator[tuple[MeshMembers, Teams]]:
    """Teams of each size of a question, on a mesh that fits their nodes, as both have them."""
    try:
        every = every_team(*objects(document))
        for teams in every.values():
            for place in product(teams.kinds, teams.sizes):
                teams.costs(*place)
    except InputError:
        return
    for team, teams in every.items():
        nodes = {place.nodes for place in teams.places.values()}
        if len(nodes) == 1:
            shapes = [sizes for sizes in fitting(team, team // nodes.pop()) if len(sizes) < 4]
            yield MeshMembers(teams, random.choice(shapes)), Teams(document, team)


def drawn_ends(random: Random, count: int) -> tuple[Placements, Placements]:
    """Placements of what a layer reads and makes, mostly whole."""
    entries = random.choice(((WHOLE,), (WHOLE, 0), (WHOLE, 0, 1)))
    before, after = (tuple(random.choice(entries) for _ in range(count)) for _ in range(2))
    return before, after


def drawn_choice(random: Random, problem: MeshProblem) -> list[int]:
    """A signature of each operator, placements of each sum, and a state of each tensor that fits its maker."""
    choice = []
    for each in problem.signatures:
        rare = [k for k, own in enumerate(each) if any(entry.gathers or entry.by for entry in own.strategy)]
        choice.append(random.choice(rare if rare and random.random() < 0.4 else range(len(each))))
    choice += [random.randrange(len(summed.choices)) for summed in problem.sums]
    for name, states in problem.copied:
        held = (
            problem.signatures[problem.index[name]][choice[problem.index[name]]].held if name in problem.index else ()
        )
        choice.append(random.choice([k for k, state in enumerate(states) if not held or state.held == held]))
    return choice


def faults(problem: MeshProblem, own: MeshMembers, home: Teams, i: int, choice: list[int]) -> Iterator[str]:
    """What both count differently of a layer under a choice."""
    strategies, kind, size = problem.layer_strategies(choice), problem.layer.kind, problem.layer.micro_batch
    case = own.teams.model.layers[i].operators, problem.input, problem.output
    layer = Strategies(home, own.sizes, i, kind.name, size, case[1:])
    only = own.problem([i], case, kind, size, strategies)
    has, wanted = only.sharding.evaluate((0,) * len(only.sharding.costs)), layer.coordinates(as_strategies(strategies))
    has = None if has is None else dict(zip(COORDINATES, has, strict=True))
    if has != wanted:
        yield f"{has}, not {wanted}"
    elif has is not None:
        device, counted = layer.device(as_strategies(strategies)), device_cost(only, strategies, tuple(has.values()))
        if (counted := {name: getattr(counted, name) for name in FIGURES}) != {name: device[name] for name in FIGURES}:
            yield f"a device has {counted}, not {device}"
        yield from shared_faults(own, layer, i, strategies)
    states = [own.states[k] for own, k in zip(problem.copied, choice[len(choice) - len(problem.copied) :], strict=True)]
    used = len(strategies.copies) == sum(state.copy is not None for state in states)
    if used and max(map(len, problem.signatures)) <= FEW:
        one = problem.sharding.evaluate(choice)
        if (one if one is None else dict(zip(COORDINATES, one, strict=True))) != has:
            yield f"{one} among all choices, {has} by itself"


def shared_faults(own: MeshMembers, layer: Strategies, i: int, strategies: LayerStrategies) -> Iterator[str]:
    """What both count differently of weights that the layer shares, and which strategies they take for main ones."""
    model, plain = own.teams.model, as_strategies(strategies)
    graph = own.graph(model.layers[i].operators, layer.size)
    of = {name: strategy for name, (strategy, _) in strategies.operators.items()}
    weights = [(each, weight) for each in layer.operators for weight in each["weights"] if weight.get("shared")]
    kept = sum(w["size"] // layer.divided(w, layer.loops_of(plain, each["name"])) for each, w in weights)
    whole = sum(weight["size"] for _, weight in weights)
    for tie in model.ties:
        has, wanted = (
            shared_bytes(tie, graph, of, own.sizes),
            tie.parameters * kept // whole if whole else tie.parameters,
        )
        if tie.layers[0] == model.layers[i].name and has != wanted:
            yield f"a device has {has} of {tie}, not {wanted}"
    if not any(entry.gathers for strategy in of.values() for entry in strategy):
        has_main = main_strategies(graph, strategies)
        main = {
            (name, tuple(entry.loop for entry in strategy), tuple(entry.by for entry in strategy))
            for name, strategy in has_main
        }
        wanted_main = {
            each for each in layer.main(plain) if each[0] not in layer.loss[1:]
        }  # they are those of the first
        if main != wanted_main:
            yield f"main strategies are {wanted_main}, not {main}"


def disputes(numbers: Iterable[int]) -> Iterator[str]:
    """What is counted differently in these questions."""
    for number in numbers:
        random, document = Random(f"members {number}"), asked(number)
        for own, home in members(document, random):
            known = [i for i, layer in enumerate(own.teams.model.layers) if layer.operators]
            for i in random.sample(known, min(2, len(known))):
                case = own.teams.model.layers[i].operators, *drawn_ends(random, len(own.sizes))
                kind, size = random.choice(own.teams.kinds), random.choice(own.teams.sizes)
                problem = own.problem([i], case, kind, size)
                for _ in range(6):
                    choice = drawn_choice(random, problem)
                    for fault in faults(problem, own, home, i, choice):
                        yield f"question {number}, {case} on {own.sizes} with {size} samples on {kind.name}: {fault}"


@pytest.fixture(autouse=True)
def in_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    """All questions are about teams."""
    for name, share in DRAWN.items():
        monkeypatch.setattr(questions, name, share)


@pytest.mark.parametrize("numbers", [part([*range(100), *chosen("members")]), rarely(range(400))], ids=len)
def test_devices_of_teams_have_what_the_referee_counts(numbers: Sequence[int]) -> None:
    """Under any strategies of a layer, between any placements, every time and every byte of a device holds."""
    assert [*disputes(numbers)] == []
