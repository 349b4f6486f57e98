"""Ways to fill nodes with teams of several sizes, against all of them by plain enumeration."""

from collections import Counter
from itertools import product
from random import Random

import pytest

from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.costs.sharding.mixed import NodeTeams, fill_up, fillings, mixes


def drawn(random: Random) -> tuple[Cluster, list[int]]:
    """One to three nodes of one kind or two, some of them alike, and the sizes of teams."""
    choices = [Node(("a",) * random.randint(1, 4) + ("b",) * random.choice((0, 0, 2)), Link(n)) for n in (1, 2)]
    nodes = tuple(random.choice(choices) for _ in range(random.randint(1, 3)))
    sizes = random.sample((1, 2, 3, 4), random.choice((2, 2, 3)))
    return Cluster("c", {name: DeviceKind(name) for name in "ab"}, nodes, Link(1)), sizes


def every_filling(node: Node, sizes: list[int]) -> list[NodeTeams]:
    """All numbers of teams of each kind and size that leave no room for another one."""
    rows = []
    for kind in dict.fromkeys(node.kinds):
        count = node.kinds.count(kind)
        numbers = product(*(range(count // size + 1) for size in sizes))
        own = [dict(zip(sizes, row, strict=True)) for row in numbers]
        full = [row for row in own if 0 <= count - sum(size * n for size, n in row.items()) < min(sizes)]
        rows.append([[(kind, size) for size in sorted(row, reverse=True) for _ in range(row[size])] for row in full])
    return [tuple(team for teams in row for team in teams) for row in product(*rows)]


@pytest.mark.parametrize("seed", range(40))
def test_all_ways_to_fill_nodes_are_found_once(seed: int) -> None:
    """With teams of two sizes at least, those of alike nodes exchanged left out; None if they are more than asked."""
    cluster, sizes = drawn(Random(seed))
    wanted = set()
    for nodes in product(*(every_filling(node, sizes) for node in cluster.nodes)):
        if len({team for node in nodes for _, team in node}) > 1:
            wanted.add(tuple(sorted((str(node), row) for node, row in zip(cluster.nodes, nodes, strict=True))))
    found = fillings(cluster, sizes, 10**6)
    assert found is not None
    alike = [tuple(sorted((str(node), row) for node, row in zip(cluster.nodes, nodes, strict=True))) for nodes in found]
    assert len(alike) == len(wanted) and {*alike} == wanted
    assert not found or mixes(cluster, sizes, {}, 0, 0) is None
    assert fillings(cluster, sizes, len(found)) in (found, None) and (
        not found or fillings(cluster, sizes, len(found) - 1) is None
    )


@pytest.mark.parametrize("seed", range(40))
def test_what_is_left_of_nodes_is_filled_with_the_largest_teams(seed: int) -> None:
    """Some teams of a node are given; of each kind the largest that fit follow, teams of a kind together."""
    random = Random(seed)
    cluster, sizes = drawn(random)
    given, left, wanted = [], [], []
    for node in cluster.nodes:
        teams = [team for team in random.choice(every_filling(node, sizes)) if random.random() < 0.5]
        given.append(random.sample(teams, len(teams)))
        rest = Counter(node.kinds)
        for kind, size in teams:
            rest[kind] -= size
        left.append(Counter(rest))
        row = []
        for kind in dict.fromkeys(node.kinds):
            own = [size for other, size in teams if other == kind]
            while room := [size for size in sizes if size <= rest[kind]]:
                own.append(max(room))
                rest[kind] -= max(room)
            row += [(kind, size) for size in sorted(own, reverse=True)]
        wanted.append(tuple(row))
    assert fill_up(cluster, given, left, sizes) == tuple(wanted)
