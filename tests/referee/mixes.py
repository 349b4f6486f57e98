"""Mixes: teams of unlike sizes side by side, for each way to fill the nodes and to split layers over each size."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from .costs import layer_costs
from .documents import Document, Question
from .teams import Split, Teams

MOST = 128
"""Mixes of which all are searched; of more, none is."""
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


def mixed(whole: Document, nodes: Nodes, own: Mapping[int, tuple[Teams, Split]], some: Teams) -> Document:
    """The question in which the teams of a mix are devices; of ``some`` teams, sizes are those of all."""
    cluster, model, question = whole["cluster"], whole["model"], some.question
    devices, profiles = {}, []
    for kind, team in dict.fromkeys(row for node in nodes for row in node):
        name = named((kind, team))
        if team in own:
            teams, split = own[team]
            entry = teams.device(kind) | {"parts": teams.parameters(split)}
            costs = {size: teams.costs(kind, size, split) for size in some.sizes}
        else:
            entry = some.device(kind) | {"team": 1}
            costs = {
                size: {
                    layer: dict(vars(cost))
                    for layer, cost in zip(question.names, layer_costs(question, kind, size), strict=True)
                }
                for size in some.sizes
            }
        devices[name] = entry
        profiles += [{"device": name, "micro_batch": size, "costs": rows} for size, rows in costs.items()]
    places = [
        {"devices": [{"kind": named(row), "count": 1} for row in node], "link": entry["link"]}
        for node, entry in zip(nodes, cluster["nodes"], strict=True)
        if node
    ]
    job = {name: value for name, value in whole["job"].items() if name not in ("teams", "equal_teams")}
    job["micro_batches"] = [question.batch // size for size in some.sizes]
    job["zero"] = [level for level in question.job["zero"] if level < 2]
    return {
        "model": {**model, "profiles": profiles},
        "cluster": {**cluster, "devices": devices, "nodes": places},
        "job": job,
        "solve": whole["solve"],
    }


def mixable(question: Question) -> bool:
    """Whether stages may have teams of unlike sizes."""
    job = question.job
    excluded = job["equal_teams"] or job["pin"] or question.ties or job["order"] == "given"
    return not excluded and len(set(job["teams"])) > 1


@dataclass(frozen=True)
class Mix:
    """The teams of each node, and the split of each size but 1, by its place among those that were searched."""

    nodes: Nodes
    splits: tuple[tuple[int, int], ...]

    def alike(self, question: Question) -> object:
        """What mixes have in common that differ by an exchange of equal nodes."""
        nodes = question.document["cluster"]["nodes"]
        places = sorted((str(nodes[n]), row) for n, row in enumerate(self.nodes))
        return tuple(places), self.splits


def mixes(question: Question, splits: Mapping[int, Sequence[tuple[Teams, Split]]]) -> list[Mix]:
    """All mixes of a question; none if they are too many. ``splits``: those that were searched, by size."""
    found = []
    for nodes in fillings(question, sorted(set(question.job["teams"]))):
        teams = sorted({team for node in nodes for _, team in node if team > 1})
        for row in product(*(range(len(splits[team])) for team in teams)):
            if len({tuple(splits[team][k][0].sequence) for team, k in zip(teams, row, strict=True)}) == 1:
                found.append(Mix(nodes, tuple(zip(teams, row, strict=True))))
    return found if len(found) <= MOST else []
