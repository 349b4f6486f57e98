"""The ways in which teams may run layers, found without a search, as the referee prices them; and mixes of teams."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random

import pytest

from helpers.quick import part, rarely
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.model import Model
from pipeplan.costs.sharding.question import MixedQuestion, TeamQuestion, team_questions
from referee import questions
from referee.bridge import as_way, objects
from referee.chosen import chosen
from referee.documents import Document, Question
from referee.mixes import mixable, mixed, mixes
from referee.rarities import readers_without_tokens
from referee.teams import Teams
from referee.ways import Ways

DRAWN = {"TEAMS": 1.0}
"""Shares of questions, all of which are about teams."""
MOST = 10**6
SPARE = "z"
"""A kind of device that no node has."""


def of_model(model: Model, size: int) -> Document:
    """What plans are priced by: costs on each kind at one micro-batch size, parameters, and what layers share."""
    profiles = [profile for profile in model.profiles if profile.micro_batch == size]
    costs = {
        profile.device: {
            name: {key: getattr(cost, key) for key in cost.__dataclass_fields__}
            for name, cost in zip(model.names, profile.costs, strict=True)
        }
        for profile in profiles
    }
    parts = {device: [*sizes] for device, sizes in model.parts.items()}
    ties = [(tie.layers, tie.parameters, tie.frozen) for tie in model.ties]
    return {"costs": costs, "ties": ties, "parameters": parts or [layer.parameters for layer in model.layers]}


def of_document(document: Document, size: int) -> Document:
    """The same of a document."""
    model, devices = document["model"], document["cluster"]["devices"]
    costs = {each["device"]: each["costs"] for each in model["profiles"] if each["micro_batch"] == size}
    ties = [(tuple(tie["layers"]), tie.get("parameters", 0), tie.get("frozen", 0)) for tie in model.get("ties", ())]
    parts = {name: own["parts"] for name, own in devices.items() if "parts" in own}
    whole = [layer["parameters"] for layer in model["layers"]]
    parameters = {name: parts.get(name, whole) for name in devices} if parts else whole
    return {"costs": costs, "ties": ties, "parameters": parameters}


def lies(cluster: Cluster) -> Document:
    """Kinds and links of each node, and what a device of each kind is."""
    kinds = {name: (kind.team, kind.at_card, kind.memory, kind.runtime) for name, kind in cluster.kinds.items()}
    nodes = [_node(list(node.kinds), node.link.bandwidth, node.link.latency) for node in cluster.nodes]
    return {"nodes": nodes, "kinds": kinds}


def _node(kinds: list[str], *link: int | None) -> tuple[object, ...]:
    """Its kinds, and the link between two of them if there are two."""
    return kinds, *link * (len(kinds) > 1)


def lies_in(document: Document) -> Document:
    """The same of a document."""
    asked, nodes = Question(document, 0), []
    for number, link in enumerate(asked.links):
        own = [device.kind for device in asked.devices if device.node == number]
        nodes.append(_node(own, link.bandwidth, link.latency))
    kinds = {
        name: (asked.team(name), asked.at_card(name), own.get("memory"), asked.runtime(name))
        for name, own in asked.kinds.items()
    }
    return {"nodes": nodes, "kinds": kinds}


def way_faults(asked: TeamQuestion, document: Document, where: str) -> Iterator[str]:
    """What the planner and the referee count differently in a question in which teams are devices."""
    batch = document["job"]["batch"]
    if tuple(document["job"]["micro_batches"]) != asked.job.micro_batches:
        yield f"{where}: {document['job']['micro_batches']} micro-batches, not {asked.job.micro_batches}"
    if lies(asked.cluster) != lies_in(document):
        yield f"{where}: teams lie in {lies_in(document)}, not {lies(asked.cluster)}"
    for count in asked.job.micro_batches:
        one, other = of_model(asked.model, batch // count), of_document(document, batch // count)
        yield from (f"{where}: {name} are {other[name]}, not {one[name]}" for name in one if one[name] != other[name])


def mix_faults(
    asked: Question,
    document: Document,
    mixed_questions: list[MixedQuestion],
    of: Mapping[int, list[tuple[Ways, Document]]],
    random: Random,
) -> Iterator[str]:
    """What both think of stages with teams of unlike sizes: which mixes there are, and what one of them costs."""
    known = {(mix.nodes, mix.splits, mix.tied): mix for mix in (mixes(asked, of) if mixable(asked) else ())}
    has = {}
    for each in mixed_questions:
        every = each.every(MOST) or ()
        if every and each.every(len(every) - 1) is not None:
            yield f"{len(every)} mixes are more than one less"
        for mix in every:
            places = tuple(sorted((split.team, split.number) for split in mix.splits))
            has[mix.nodes, places, mix.tied] = each.mix(mix)
    if {*map(_exchanged, has)} != {*map(_exchanged, known)}:
        yield f"{len(has)} mixes, not {len(known)}: {[*has][:1]}, {[*known][:1]}"
        return
    for key in random.sample([*has], min(len(has), 2)):
        splits = {team: of[team][number] for team, number in key[1]}
        wanted = mixed(document, key[0], key[2], splits, next(iter(of.values()))[0][0].teams)
        yield from way_faults(has[key], wanted, f"mix {key}")


def _exchanged(key: tuple[tuple[tuple[tuple[str, int], ...], ...], object, object]) -> object:
    """A mix, whatever the order of its nodes."""
    nodes, splits, tied = key
    return tuple(sorted(nodes)), splits, tied


def drawn(number: int) -> Document:
    """A random question about teams; a third of them about stages with teams of unlike sizes."""
    document = questions.question(number)
    job = document["job"]
    if number % 3 == 0 and not job.get("strategy"):
        job.pop("order", None)
        job |= {"teams": sorted({1, 2, *job.get("teams", ())}), "unlike_teams": True, "pin": []}
    return document


def rare(number: int) -> Document:
    """The same, where an operator reads along another axis than tokens, a kind has no node, or only a loss is split."""
    document, random = drawn(number), Random(f"rare {number}")
    readers_without_tokens(random, document["model"])
    if random.random() < 0.5:
        document["cluster"]["devices"][SPARE] = {}
    if random.random() < 0.3:
        for graph in document["model"]["operators"].values():
            for each in graph["operators"]:
                if each["name"] not in (graph.get("loss") or {"operators": ()})["operators"]:
                    each |= {"loops": {}, "groups": {}}
    return document


def asked_of(document: Document) -> list[TeamQuestion | MixedQuestion] | None:
    """The questions of its teams; None if it is refused."""
    try:
        return list(team_questions(*objects(document)))
    except InputError:
        return None


def disputes(numbers: Iterable[int], draw: Callable[[int], Document] = drawn) -> Iterator[str]:
    """What is counted differently in these questions."""
    for number in numbers:
        document = draw(number)
        every = asked_of(document)
        if every is None:
            used = {kind: own for kind, own in document["cluster"]["devices"].items() if kind != SPARE}
            if asked_of(document | {"cluster": document["cluster"] | {"devices": used}}) is not None:
                yield f"question {number} is refused for a kind that no node has"
            continue
        ways = [(each, as_way(each.split)) for each in every if isinstance(each, TeamQuestion)]
        teams = {team: Ways(Teams(document, team)) for team in dict.fromkeys(way["team"] for _, way in ways)}
        where = f"question {number}"
        for asked, way in ways:
            yield from way_faults(asked, teams[way["team"]].document(way), f"{where}, way {way['team'], way['sizes']}")
        for team, own in teams.items():
            of_team = [way for _, way in ways if way["team"] == team]
            yield from (f"{where}, teams of {team}: {fault}" for fault in own.unsearched(of_team))
        mixed_questions = [each for each in every if isinstance(each, MixedQuestion)]
        splits = {split for each in mixed_questions for split in each.splits}
        of = {
            team: [(own, way) for asked, way in ways if way["team"] == team and asked.split in splits]
            for team, own in teams.items()
        }
        of = {team: own for team, own in of.items() if own}
        for fault in mix_faults(Question(document, 0), document, mixed_questions, of, Random(number)):
            yield f"{where}: {fault}"


@pytest.fixture(autouse=True)
def in_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    """All questions are about teams."""
    for name, share in DRAWN.items():
        monkeypatch.setattr(questions, name, share)


@pytest.mark.parametrize("numbers", [part(chosen("ways")), rarely(range(60))], ids=len)
def test_ways_of_teams_cost_what_the_referee_counts(numbers: Sequence[int]) -> None:
    """Where teams lie, what their devices have of layers, which ways are searched, and which mixes there are."""
    assert [*disputes(numbers)] == []


@pytest.mark.parametrize("numbers", [(1, 9, 17), rarely(range(60))], ids=len)
def test_rare_ways_of_teams_cost_what_the_referee_counts(numbers: Sequence[int]) -> None:
    """The same of what random questions seldom have."""
    assert [*disputes(numbers, rare)] == []
