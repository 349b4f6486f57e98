"""Places of teams: in nodes, and over whole nodes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.operators import perceptrons
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.costs.sharding.exchanges import redistribution_time
from pipeplan.costs.sharding.mixed import mixes
from pipeplan.costs.sharding.places import Place, places, team_cluster
from pipeplan.costs.sharding.question import team_questions
from pipeplan.costs.sharding.shapes import mesh_on
from pipeplan.solve import solve

INSIDE, NETWORK = Link(8 * 10**9, 1), Link(10**9, 5)


def cluster(*nodes: str) -> Cluster:
    """Nodes with a device for each entry, which is its kind."""
    kinds = {entry: DeviceKind(entry) for entry in "".join(nodes)}
    return Cluster("drawn", kinds, tuple(Node(tuple(node), INSIDE) for node in nodes), NETWORK)


@pytest.mark.parametrize(
    ("nodes", "team", "found"),
    [
        (("aaaa", "aaaa"), 4, {"a": Place(1, INSIDE, INSIDE)}),
        (("aaaa", "aaaa"), 8, {"a": Place(2, NETWORK, INSIDE)}),
        (("aa", "aa", "aa", "aa"), 4, {"a": Place(2, NETWORK, INSIDE)}),
        (("aa", "aa", "aa"), 6, {"a": Place(3, NETWORK, INSIDE)}),
        (("aa", "aa"), 3, {}),
        (("aaa", "aa"), 5, {}),
        (("aaaa", "aa", "aa"), 4, {"a": Place(1, INSIDE, INSIDE)}),
        (("ab", "ab"), 2, {}),
        (("aa", "bb", "aa"), 4, {"a": Place(2, NETWORK, INSIDE)}),
        (("aa", "aa"), 8, {}),
    ],
)
def test_teams_lie_in_nodes_or_are_whole_nodes(nodes: tuple[str, ...], team: int, found: dict[str, Place]) -> None:
    """A team extends over nodes only if none is large enough, and all are equal, of one kind, and divide it."""
    assert places(cluster(*nodes), team) == found


def test_nodes_of_a_team_are_one_node() -> None:
    """What is left over is unused, and members in a node share its card."""
    found = team_cluster(cluster("aa", "bb", "aa", "aa", "bb", "aa", "aa"), 4)
    assert [node.kinds for node in found.nodes] == [("a",), ("b",), ("a",)]
    kinds = found.kinds
    assert [(kinds[name].team, kinds[name].spread) for name in "ab"] == [(4, 2), (4, 2)]
    assert found.between(kinds["a"], kinds["b"]) == Link(10**9 // 2, 5)
    inside = team_cluster(cluster("aaaa", "aaaa"), 4)
    assert inside.between(inside.kinds["a"], inside.kinds["a"]) == Link(10**9 // 4, 5)


def test_teams_over_unlike_links_are_alike() -> None:
    """Only a team over nodes uses their links, which are in its costs; so such teams may be replicas of a stage."""
    slow = Node(("a", "a"), Link(10**9, 1))
    drawn = cluster("aa", "aa", "aa", "aa")
    found = team_cluster(replace(drawn, nodes=(slow, *drawn.nodes[1:])), 4)
    assert [node.link for node in found.nodes] == [slow.link, slow.link]


def test_members_that_send_to_all_others_share_a_card() -> None:
    """From axis to axis two members of a node send at once; a ring passes each card once."""
    size, link = 1600, Link(10**9, 5)
    assert redistribution_time(0, 1, size, 4, link, sharing=2) == 3 * (5 + 2 * 100)
    assert redistribution_time(0, -1, size, 4, link, sharing=2) == 3 * (5 + 400)


def test_teams_without_room_are_refused_with_those_that_fit() -> None:
    """The message says which sizes there are."""
    with pytest.raises(InputError, match=r"no node of 'drawn' has 3 devices.* room for teams of 2, 4, 6 or 8"):
        list(team_questions(perceptrons(), cluster("aa", "aa", "aa", "aa"), Job(4, teams=(3,))))


LINKS = st.builds(
    Link,
    st.sampled_from([None, 10**8, 10**9, 10**10]),
    st.integers(0, 5),
    st.sampled_from([0.5, 1.0, 1.5]),
)


@given(LINKS, LINKS, st.integers(1, 4), st.integers(2, 4))
def test_a_mesh_of_one_axis_costs_what_the_team_costs(inside: Link, network: Link, within: int, nodes: int) -> None:
    """One ring over all nodes, whichever of the network and the links inside is slower."""
    team = within * nodes
    own = replace(cluster(*["a" * within] * nodes), network=network)
    own = replace(own, nodes=tuple(replace(node, link=inside) for node in own.nodes))
    place = places(own, team)["a"]
    mesh = mesh_on((team,), team // place.nodes, place.inside, network)
    assert mesh.links == (place.link,)
    assert mesh.sharing == (within if place.nodes > 1 else 1,)


def test_a_team_over_a_fast_network_takes_as_long_as_a_mesh_of_one_axis() -> None:
    """Its rings pass the links inside the nodes, which are slow; two axes may be faster."""
    node = Node(("unit",) * 2, Link(10**9, 10))
    own = Cluster("fast network", {"unit": DeviceKind("unit")}, (node, node), Link(10**10))
    model = perceptrons()
    times = [solve(model, own, job=Job(2, teams=(4,), depths=(1,), mesh_axes=axes)).value for axes in (0, 1, 2)]
    assert times[0] == times[1] >= times[2]


def test_teams_of_a_mix_hold_the_same_tensors_in_parts() -> None:
    """Between layers all have parts of the tokens, or none: the splits of each size are paired alike."""
    splits = {team: [SimpleNamespace(sequence=parts) for parts in (False, True)] for team in (4, 2)}
    found = mixes(cluster("aaaa", "aaaa"), (4, 2), splits, 0, 100)  # type: ignore[arg-type]
    assert found is not None
    assert {tuple(split.sequence for split in mix.splits) for mix in found} == {(False, False), (True, True)}
