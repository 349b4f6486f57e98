"""Spaces that are bounded together: each bound holds for every one of them, the fastest and the slowest."""

from collections.abc import Iterator

import pytest

from pipeplan.core.job import Job
from pipeplan.io.load import load_cluster, load_model
from pipeplan.search import root_nodes
from pipeplan.search.branch_and_bound import PlanSearch
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


@pytest.mark.parametrize("value", [640 * 10**6, 700 * 10**6, 10**9])
def test_no_member_is_below_the_bound_of_all(monkeypatch: pytest.MonkeyPatch, value: int) -> None:
    """Before and behind each step down to single spaces, though the fastest is below the bounds of others."""
    monkeypatch.setattr(space, "FEW", 0)
    monkeypatch.setattr(space, "PAIRS", 0)
    seen = unlike = 0
    for top, search in every_joined(value):
        waiting = [top]
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
    assert seen and unlike
