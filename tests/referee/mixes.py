"""Mixes: teams of unlike sizes side by side, for each way to fill the nodes and to split layers over each size."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from .costs import layer_costs
from .documents import Document, Question
from .teams import Teams
from .ways import Ways

MOST = 128
"""Under any order of schedules, mixes of which all are searched; of more, none is."""
JUDGED = 128
"""Mixes whose best plans are compared with an answer; of more, as many of them."""
Row = tuple[str, int]
"""A team: the kind and the number of its devices."""
Nodes = tuple[tuple[Row, ...], ...]
"""The teams of each node."""


def fillings(question: Question, sizes: Sequence[int]) -> list[Nodes]:
    """Every way to fill the nodes with teams of several sizes; equal nodes are exchanged for nothing."""
    entries = question.document["cluster"]["nodes"]
    kinds = [[device.kind for device in question.devices if device.node == node] for node in range(len(entries))]
    found: dict[object, Nodes] = {}
    for nodes in product(*(list(_filled(own, sizes)) for own in kinds)):
        if len({team for node in nodes for _, team in node}) > 1:
            alike = tuple(sorted((str(entries[n]), row) for n, row in enumerate(nodes)))
            found.setdefault(alike, nodes)
    return list(found.values())


def _filled(kinds: Sequence[str], sizes: Sequence[int]) -> Iterator[tuple[Row, ...]]:
    """Teams of each kind of a node, large ones first; what is left over is too little for another one."""
    rows = []
    for kind in dict.fromkeys(kinds):
        count = kinds.count(kind)
        choices = product(*(range(count // size + 1) for size in sizes))
        own = [dict(zip(sizes, numbers, strict=True)) for numbers in choices]
        full = [each for each in own if 0 <= count - sum(size * many for size, many in each.items()) < min(sizes)]
        rows.append(
            [tuple((kind, size) for size in sorted(each, reverse=True) for _ in range(each[size])) for each in full]
        )
    for row in product(*rows):
        yield tuple(team for own in row for team in own)


def named(row: Row) -> str:
    """The kind of device that a team is."""
    kind, team = row
    return kind if team == 1 else f"{team} x {kind}"


def mixed(
    whole: Document, nodes: Nodes, tied: Sequence[int], own: Mapping[int, tuple[Ways, Document]], some: Teams
) -> Document:
    """The question in which the teams of a mix are devices; of ``some`` teams, sizes are those of all."""
    cluster, model, question = whole["cluster"], whole["model"], some.question
    devices, profiles = {}, []
    for kind, team in dict.fromkeys(row for node in nodes for row in node):
        name = named((kind, team))
        if team in own:
            meshes, split = own[team]
            entry = meshes.teams.device(kind) | {"parts": meshes.parameters(split)}
            costs = {size: meshes.costs(kind, size, split) for size in some.sizes}
        else:
            entry = some.device(kind) | {"team": 1, "spread": 1}
            costs = {
                size: {
                    layer: dict(vars(cost))
                    for layer, cost in zip(question.names, layer_costs(question, kind, size), strict=True)
                }
                for size in some.sizes
            }
        devices[name] = entry | {"members": kind}
        profiles += [{"device": name, "micro_batch": size, "costs": rows} for size, rows in costs.items()]
    places = [
        {"devices": [{"kind": named(row), "count": 1} for row in node], "link": entry["link"]}
        for node, entry in zip(nodes, cluster["nodes"], strict=True)
        if node
    ]
    job = {name: value for name, value in whole["job"].items() if name not in ("teams", "unlike_teams")}
    job["micro_batches"] = [question.batch // size for size in some.sizes]
    job["zero"] = [level for level in question.job["zero"] if level < 2]
    homes = {i: team for layers, team in zip(tied_sets(question), tied, strict=True) for i in layers}
    job["pin"] = [*question.job["pin"], *((question.names[i], f"teams of {team}") for i, team in homes.items())]
    ties = [
        tie | {"parameters": own[team][0].shared(tie, own[team][1]) if team in own else int(tie.get("parameters", 0))}
        for tie in model.get("ties", ())
        for team in [homes[question.place[tie["layers"][0]]]]
    ]
    return {
        "model": {
            **model,
            "profiles": profiles,
            "ties": [tie for tie in ties if tie["parameters"] or tie.get("frozen")],
        },
        "cluster": {**cluster, "devices": devices, "nodes": places},
        "job": job,
        "solve": whole["solve"],
    }


def tied_sets(question: Question) -> list[list[int]]:
    """Disjoint sets of layers that share weights, in the order of their first layers."""
    found: list[set[int]] = []
    for tied in question.sharing:
        meets = [own for own in found if own & set(tied)]
        found = [own for own in found if own not in meets] + [set(tied).union(*meets)]
    return sorted(map(sorted, found))


def mixable(question: Question) -> bool:
    """Whether stages may have teams of unlike sizes."""
    pinned = {question.place[name] for name, _ in question.job["pin"]}
    bound = any(pinned & set(own) for own in tied_sets(question))
    several, levels = len(set(question.job["teams"])) > 1, question.job["zero"]
    if levels and min(levels) > 1:  # mixes share out no gradients
        return False
    return several and question.job["unlike_teams"] and question.job["order"] != "given" and not bound


@dataclass(frozen=True)
class Mix:
    """The teams of each node, the split of each size but 1, by its place among those that were searched, and the sizes
    of teams that sets of layers lie on which share weights."""

    nodes: Nodes
    splits: tuple[tuple[int, int], ...]
    tied: tuple[int, ...]


Splits = Mapping[int, Sequence[tuple[Ways, Document]]]
"""Those that were searched, by size."""


def mixes(question: Question, splits: Splits) -> list[Mix]:
    """All mixes that are searched; of equal nodes in two orders, one."""
    sizes = sizes_of(question, splits)
    if len(sizes) < 2:
        return []
    found = [mix for nodes in fillings(question, sizes) for mix in on(question, nodes, splits)]
    return found if "any" not in question.job["schedules"] or len(found) <= MOST else []


def sizes_of(question: Question, splits: Splits) -> list[int]:
    """The sizes of teams that were asked for, and over which something can be split."""
    return sorted({team for team in question.job["teams"] if team == 1 or splits.get(team)})


def with_kinds(question: Question, kinds: Sequence[str], splits: Splits) -> list[Nodes]:
    """The ways to fill the nodes, equal ones in any order, with these kinds of device one behind the other."""
    entries = question.document["cluster"]["nodes"]
    rows = [[device.kind for device in question.devices if device.node == node] for node in range(len(entries))]
    found: list[Nodes] = [()]
    for own in rows:
        found = [
            (*nodes, row)
            for nodes in found
            for row in _filled(own, sizes_of(question, splits))
            if _names((*nodes, row)) == list(kinds)[: len(_names((*nodes, row)))]
        ]
    return [nodes for nodes in found if _names(nodes) == list(kinds)]


def _names(nodes: Nodes) -> list[str]:
    return [named(row) for node in nodes for row in node]


def on(question: Question, nodes: Nodes, splits: Splits) -> Iterator[Mix]:
    """The mixes that fill the nodes in one way."""
    every = {team for node in nodes for _, team in node}
    teams = sorted(every - {1})
    for row in product(*(range(len(splits.get(team, ()))) for team in teams)):
        if len({tuple(splits[team][k][1]["passes"]) for team, k in zip(teams, row, strict=True)}) == 1:
            chosen = tuple(zip(teams, row, strict=True))
            for homes in product(every, repeat=len(tied_sets(question))):
                yield Mix(nodes, chosen, homes)
