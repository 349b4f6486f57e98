"""Frontiers and fewest devices of jobs with teams: parts of a cluster may have no room for some of them."""

from dataclasses import replace

from helpers.instances import equal_devices
from helpers.operators import perceptrons
from pipeplan.analysis.frontier import fewest_devices, frontier
from pipeplan.core.cluster import Link, Node
from pipeplan.core.job import Job


def test_teams_count_all_of_their_devices() -> None:
    """On two devices or more there is a team of two; a point says how many devices it uses, and one has no plan."""
    found = frontier(perceptrons(), equal_devices(4), Job(4, teams=(2,)), over="devices")
    assert [(point.cost, point.devices) for point in found.points] == [(2, 2), (4, 4)]
    assert found.complete
    assert (found.floors[0].cost, found.floors[0].bound) == (1, None)


def test_teams_that_fit_on_few_devices_are_searched_there() -> None:
    """One device takes teams of one, whatever larger teams are asked for as well; teams of two take two."""
    model, cluster = perceptrons(), equal_devices(4)
    assert fewest_devices(model, cluster, Job(4, teams=(1, 2))).count == 1
    pair = fewest_devices(model, cluster, Job(4, teams=(2,)))
    assert (pair.count, pair.proved, len(pair.excluded)) == (2, True, 1)


def test_more_devices_may_spoil_teams_over_nodes() -> None:
    """Teams of four on whole nodes of two: ten devices have two, five have none, four have one."""
    one = equal_devices(2, link=Link(10**9, 1))
    cluster = replace(one, nodes=(Node(one.nodes[0].kinds, one.nodes[0].link),) * 5, network=Link(10**8, 1))
    found = fewest_devices(perceptrons(), cluster, Job(4, teams=(4,), micro_batches=(4,)))
    assert (found.count, found.proved, len(found.excluded)) == (4, True, 3)
