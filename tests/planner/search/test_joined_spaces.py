"""Spaces that are bounded together: each bound holds for every one of them, the fastest and the slowest."""

from collections.abc import Iterator

import pytest

from helpers.quick import rarely
from pipeplan.core.job import Job
from pipeplan.io.load import load_cluster, load_model
from pipeplan.search import root_nodes
from pipeplan.search.branch_and_bound import PlanSearch
from pipeplan.search.nodes import layouts
from pipeplan.search.nodes.aggregate import AggregateNode
from pipeplan.search.nodes.aggregate_problem import allocation_problem
from pipeplan.search.nodes.joined_spaces import JoinedSpacesNode, joined
from pipeplan.search.space import space
from pipeplan.search.space.spaces import Spaces
from pipeplan_formulations.allocation import ChainAllocation, exact
from pipeplan_formulations.common.report import Limits


def least(node: AggregateNode, problem: ChainAllocation | None) -> int | None:
    """The least value of a member alone; None if it has no plan."""
    own = problem or allocation_problem(node.space, node.size, node.layout, node.alternating)
    return exact.solve(own, Limits()).objective


def every_joined(value: int) -> Iterator[tuple[JoinedSpacesNode, PlanSearch]]:
    """The joined nodes of teams of two, which split in many ways, with a search whose best plan takes so long."""
    one = Job(8, micro_batches=(1,), teams=(2,), depths=(1,), replicas=(1,), zero=(0,))
    spaces = Spaces(load_model("gpt2-small"), load_cluster("8-v100-pcie"), one)
    nodes = [node for own in spaces for node in root_nodes(own) if node.joins]
    search = PlanSearch(Limits(), cluster_of=spaces.cluster_of)
    search.value = value
    for node in joined(nodes):
        if isinstance(node, JoinedSpacesNode):
            yield node, search


def check(top: JoinedSpacesNode, search: PlanSearch) -> tuple[int, int]:
    """No bound of the node, before or behind each step down to single spaces, is above the optimum of a member.

    Returns the number of nodes, and of those of which a member's own bound is above another one's optimum.
    """
    waiting, seen, unlike = [top], 0, 0
    while waiting:
        node = waiting.pop()
        values = [value for value in (least(*member) for member in node.members) if value is not None]
        assert node.bound <= min(values, default=node.bound)
        unlike += max(member.bound for member, _ in node.members) > min(values, default=2**60)
        seen += 1
        below = node.advance(search)
        assert node.bound <= min(values, default=node.bound)
        assert below.rest is None or below.rest <= min(values, default=below.rest)
        waiting += [each for each in below.nodes if isinstance(each, JoinedSpacesNode)]
        for each in below.nodes:
            if isinstance(each, AggregateNode):
                own = least(each, None)
                assert own is None or each.bound <= own
    return seen, unlike


@pytest.mark.parametrize("value", [640 * 10**6, rarely(700 * 10**6), rarely(10**9)])
def test_no_member_is_below_the_bound_of_all(monkeypatch: pytest.MonkeyPatch, value: int) -> None:
    """Though the fastest is below the bounds of others."""
    monkeypatch.setattr(space, "FEW", 0)
    monkeypatch.setattr(space, "PAIRS", 0)
    counts = [check(top, search) for top, search in every_joined(value)]
    assert all(map(sum, zip(*counts, strict=True)))


def test_levels_and_placements_of_equally_many_replicas_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed and in tiles, at all levels of ZeRO."""
    monkeypatch.setattr(space, "FEW", 0)
    monkeypatch.setattr(space, "PAIRS", 0)
    monkeypatch.setattr(layouts, "SMALL", 1)
    one = Job(8, micro_batches=(8,), teams=(1,), replicas=(2,), zero=(0, 1, 2, 3))
    spaces = Spaces(load_model("gpt2-small"), load_cluster("2x2-v100-10gbit"), one)
    search = PlanSearch(Limits(), cluster_of=spaces.cluster_of)
    search.value = 2 * 10**9
    tops = list(joined(node for own in spaces for node in root_nodes(own) if node.joins))
    for top in tops:
        assert isinstance(top, JoinedSpacesNode)
        assert {node.layout.tile for node, _ in top.members} == {None, 1}
        check(top, search)
    assert {node.space.job.level for top in tops for node, _ in top.members} == {0, 1, 2, 3}
