"""Places of teams: the nodes in which teams of a size lie, and the links between their members.

::

    node 0      node 1      node 2      node 3         teams of 4 in nodes of 4 and of 2: inside, or over two nodes
    [a a a a]   [a a a a]                              two teams
    [a a        a a]        [a a        a a]           two teams, each of whose rings passes two cards

A team lies in one node if any node has enough devices of its kind. Otherwise it has whole nodes, one behind the other,
if all nodes with this kind have equally many devices of it, and no others.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pipeplan.core.cluster import Cluster, Link, Node
from pipeplan.costs.network import slowest


class Place(NamedTuple):
    """Nodes of each team of a kind, the slowest link of a ring through its members, and that inside of a node."""

    nodes: int
    link: Link
    inside: Link


def places(cluster: Cluster, team: int) -> dict[str, Place]:
    """Return where teams of a size lie, for each kind of device that has any."""
    known = {}
    for kind in cluster.kinds:
        counts = [node.kinds.count(kind) for node in cluster.nodes if kind in node.kinds]
        inside = [node.link for node in cluster.nodes if node.kinds.count(kind) >= team]
        if inside:
            known[kind] = Place(1, slowest(*inside), slowest(*inside))
        elif counts and len(counts) >= (nodes := _spread(cluster, kind, team)) > 1:
            assert cluster.network is not None
            links = [node.link for node in cluster.nodes if kind in node.kinds]
            known[kind] = Place(nodes, slowest(*links * (counts[0] > 1), cluster.network), slowest(*links))
    return known


def _spread(cluster: Cluster, kind: str, team: int) -> int:
    """Return the number of whole nodes that make up a team; 0 if none do."""
    rows = {node.kinds for node in cluster.nodes if kind in node.kinds}
    count = len(next(iter(rows)))
    return team // count if len(rows) == 1 and rows == {(kind,) * count} and team % count == 0 else 0


def team_cluster(cluster: Cluster, team: int) -> Cluster:
    """Return the cluster whose devices are teams of neighbours of one kind; leftover devices are unused.

    Members of two teams exchange tensors pairwise: inside a node each pair has a link of its own, between nodes see
    `Cluster.between`. Times of a member are those of its kind's tables, so relative speeds are part of them.
    """
    known = places(cluster, team)
    nodes = tuple(_filled(cluster, known, team))
    used = {kind for node in nodes for kind in node.kinds}
    kinds = {name: kind.as_team(team, known[name].nodes) for name, kind in cluster.kinds.items() if name in used}
    return Cluster(cluster.name, kinds, nodes, cluster.network, cluster.overlap, cluster.notes)


def _filled(cluster: Cluster, known: Mapping[str, Place], team: int) -> Iterator[Node]:
    """Yield the nodes of a cluster of teams; those over which one team extends are one node.

    A single team is in it, so the link inside is no other team's, and all such nodes of a kind are alike.
    """
    waiting: Counter[str] = Counter()
    for node in cluster.nodes:
        kinds = [kind for kind in dict.fromkeys(node.kinds) if kind in known]
        for kind in kinds:
            if known[kind].nodes > 1:
                waiting[kind] += 1
                if waiting[kind] % known[kind].nodes == 0:
                    yield Node((kind,), known[kind].inside)
        teams = [kind for kind in kinds if known[kind].nodes == 1 for _ in range(node.kinds.count(kind) // team)]
        if teams:
            yield Node(tuple(teams), node.link)
