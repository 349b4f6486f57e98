"""Graph nodes for the bottleneck: depths, micro-batch sizes, and nodes left open at the time limit."""

from dataclasses import replace

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan import load_cluster, load_model
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.job import Job
from pipeplan.search.branch_and_bound import PlanSearch
from pipeplan.search.evaluate import evaluate
from pipeplan.search.graph.loads import _busiest
from pipeplan.search.graph.node import graph_nodes
from pipeplan.search.space.space import Space
from pipeplan.solve import solve
from pipeplan_formulations.common.report import Limits, Status


def test_a_requested_depth_keeps_its_replicas() -> None:
    """Two layers on two stages of four devices: either stage has two of them, as without ``depths``."""
    model = model_of([100, 100], saved=[4, 4], output=[4, 4])
    cluster = equal_devices(4, link=Link(10**9))
    free, two = (solve(model, cluster, batch=4, objective="bottleneck", depths=depths) for depths in ((), (2,)))
    assert (free.value, two.value, two.status) == (150, 150, Status.OPTIMAL)
    assert [stage.replicas for stage in two.plan.stages] == [2, 2]


def test_several_depths_are_searched_at_once() -> None:
    """Of one stage and three, three are better; two, which would be best, are not allowed."""
    model = model_of([10, 1, 1], [0, 0, 0])
    values = {
        depths: solve(model, equal_devices(3), batch=2, objective="bottleneck", depths=depths, replicas=(1, 2)).value
        for depths in ((1,), (2,), (3,), (1, 3))
    }
    assert values == {(1,): 6, (2,): 5, (3,): 10, (1, 3): 6}


@pytest.mark.parametrize(("replicas", "behind", "most"), [(1, 2, 8), (2, 1, 8), (2, 3, 4), (2, 4, 4)])
def test_a_card_has_all_tensors_of_its_device(replicas: int, behind: int, most: int) -> None:
    """In nodes of one device the fewer replicas of a border send and receive the most of eight micro-batches each."""
    node = Node(("unit",), Link())
    cluster = Cluster("apart", {"unit": DeviceKind("unit")}, (node,) * 6, Link(10**9))
    space = Space(model_of([10, 10], output=[1, 1]), cluster, Job(8, objective="bottleneck"))
    assert _busiest(space, 1, replicas, behind) == most


def test_micro_batch_sizes_compare_per_sample() -> None:
    """Two samples at once take hardly longer than one, so larger micro-batches have the smaller load."""
    model = model_of([10, 10], [0, 0], sizes=(1, 2))
    costs = tuple(replace(cost, forward=12) for cost in model.profiles[1].costs)
    model = replace(model, profiles=(model.profiles[0], replace(model.profiles[1], costs=costs)))
    result = solve(model, equal_devices(2), batch=4, objective="bottleneck", replicas=(1,))
    assert (result.plan.micro_batch, result.value, result.status) == (2, 6, Status.OPTIMAL)


def test_a_node_stays_open_at_the_time_limit() -> None:
    """Without time nothing is proved: the node stays open, with a valid bound."""
    model, cluster = model_of([7, 2, 2, 9], [0] * 4), equal_devices(3)
    space = Space(model, cluster, Job(batch=4, objective="bottleneck"))
    (node,) = graph_nodes(space)
    step = node.advance(PlanSearch(Limits(0.0), cluster_of=lambda _: cluster))
    assert (list(step.nodes), step.rest) == ([node], None)
    assert node.bound <= solve(model, cluster, job=space.job).value


@pytest.mark.slow
def test_the_plan_for_a_step_has_no_smaller_load() -> None:
    """GNMT on two nodes of four: the least bottleneck is no larger than that of the plan for the least step."""
    model, cluster = load_model("gnmt-8"), load_cluster("2x4-v100-10gbit")
    least = solve(model, cluster, batch=64, objective="bottleneck")
    plan = solve(model, cluster, batch=64, time_limit=20).plan
    groups = tuple(tuple(cluster.devices[d] for d in stage.devices) for stage in plan.stages)
    boundaries = tuple(sum(len(stage.layers) for stage in plan.stages[:s]) for s in range(len(plan.stages) + 1))
    space = Space(model, cluster, Job(batch=64, objective="bottleneck"))
    (candidate,) = space.candidates(groups, plan.micro_batch)
    assert least.status is Status.OPTIMAL
    assert least.value <= evaluate(cluster, candidate, boundaries).value
