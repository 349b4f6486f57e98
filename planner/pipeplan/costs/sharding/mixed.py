"""Mixes: teams of unlike sizes side by side on a cluster, so that stages may have teams of their own sizes.

A node of four devices, and teams of 1, 2 or 4::

    4       2 2       2 1 1       1 1 1 1          all but the third are of one size: questions of their own

Each way to fill the nodes is a question in which teams of each size are a kind of device. What teams of a size split is
one of the splits that are worth searching if all have this size, and the same in all their stages. All teams of a mix
hold the same tensors between layers whole, or split along tokens. Layers that share weights lie on teams of one size,
so that the parts of a copy are those of the others.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations_with_replacement, product
from math import comb, prod

from pipeplan.core.cluster import Cluster, Node
from pipeplan.core.splits import Mix, Split

MOST = 128
"""Most mixes that are searched one by one, as for any order of schedules; of more, none is."""

NodeTeams = tuple[tuple[str, int], ...]
"""The teams in a node: kind and number of their devices."""


def mixes(
    cluster: Cluster, sizes: Sequence[int], splits: Mapping[int, Sequence[Split]], tied: int, most: int
) -> tuple[Mix, ...] | None:
    """Return the mixes of teams of these sizes; None if they are more than ``most``.

    Parameters
    ----------
    sizes : sequence of int
        Devices of a team; 1 is a device by itself.
    splits : mapping of int to sequence of Split
        Those worth searching, for each size above 1.
    tied : int
        Number of sets of layers that share weights; each lies on teams of one size.
    """
    mixed: list[Mix] = []
    ways = fillings(cluster, sizes, most)
    if ways is None:
        return None
    for nodes in ways:
        teams = sorted({team for node in nodes for _, team in node}, reverse=True)
        for row in product(*(splits[team] for team in teams if team > 1)):
            if len({split.sequence for split in row}) > 1:
                continue
            for homes in product(teams, repeat=tied):
                mixed.append(Mix(row, nodes, homes, len(mixed)))
                if len(mixed) > most:
                    return None
    return tuple(mixed)


def mixed_cluster(cluster: Cluster, mix: Mix) -> Cluster:
    """Return the cluster whose devices are the teams of a mix; those of several devices are kinds of their own."""
    nodes = (
        Node(tuple(kind_name(kind, team) for kind, team in teams), node.link)
        for teams, node in zip(mix.nodes, cluster.nodes, strict=True)
    )
    filled = tuple(node for node in nodes if node.kinds)
    kinds = {
        name: replace(cluster.kinds[kind].as_team(team), name=name, members=kind)
        for name, (kind, team) in kinds_of(mix).items()
    }
    return Cluster(cluster.name, kinds, filled, cluster.network, cluster.overlap, cluster.notes)


def fill_up(
    cluster: Cluster, found: list[list[tuple[str, int]]], left: Sequence[Counter[str]], sizes: Sequence[int]
) -> tuple[NodeTeams, ...]:
    """Return the teams of each node: those found, and of the devices left the largest teams that fit.

    Teams of a kind are listed together, the largest first.
    """
    for teams, rest in zip(found, left, strict=True):
        for kind in rest:
            for size in sorted(sizes, reverse=True):
                teams += [(kind, size)] * (rest[kind] // size)
                rest[kind] %= size
    kinds = [tuple(dict.fromkeys(node.kinds)) for node in cluster.nodes]
    return tuple(
        tuple(sorted(teams, key=lambda team: (order.index(team[0]), -team[1])))
        for teams, order in zip(found, kinds, strict=True)
    )


def kinds_of(mix: Mix) -> dict[str, tuple[str, int]]:
    """Return for each kind of device of a mixed cluster the kind and the number of their devices."""
    return {kind_name(kind, team): (kind, team) for kind, team in chain.from_iterable(mix.nodes)}


def kind_name(kind: str, team: int) -> str:
    """Return the name of teams of a kind of device in a mix: ``'2 x v100'``."""
    return kind if team == 1 else f"{team} x {kind}"


def fillings(cluster: Cluster, sizes: Sequence[int], most: int) -> tuple[tuple[NodeTeams, ...], ...] | None:
    """Return the ways to fill all nodes with teams of several sizes; None if they are more than ``most``.

    Nodes of equal devices and links are alike.
    """
    alike: dict[Node, list[int]] = {}
    for number, node in enumerate(cluster.nodes):
        alike.setdefault(node, []).append(number)
    ways = {node: list(_node_fillings(node, sizes)) for node in alike}
    if prod(comb(len(ways[node]) + len(numbers) - 1, len(numbers)) for node, numbers in alike.items()) > most**2:
        return None
    rows = (combinations_with_replacement(ways[node], len(numbers)) for node, numbers in alike.items())
    order, filled = list(chain.from_iterable(alike.values())), []
    for row in product(*rows):
        placed = dict(zip(order, chain.from_iterable(row), strict=True))
        nodes = tuple(placed[number] for number in sorted(order))
        if len({team for node in nodes for _, team in node}) > 1:
            filled.append(nodes)
    return tuple(filled) if len(filled) <= most else None


def _node_fillings(node: Node, sizes: Sequence[int]) -> Iterator[NodeTeams]:
    """Yield the teams that fill a node, the largest first: no further team has room."""
    kinds = tuple(dict.fromkeys(node.kinds))
    rows = (list(_sums(node.kinds.count(kind), sorted(set(sizes), reverse=True))) for kind in kinds)
    for row in product(*rows):
        yield tuple((kind, team) for kind, teams in zip(kinds, row, strict=True) for team in teams)


def _sums(count: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the descending rows of ``sizes``, which descend, that leave of a count less than the least of them."""
    if count < sizes[-1]:
        yield ()
    for place, size in enumerate(sizes):
        if size <= count:
            yield from ((size, *rest) for rest in _sums(count - size, sizes[place:]))
