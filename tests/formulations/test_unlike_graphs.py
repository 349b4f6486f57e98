"""Networks of unlike nodes under a memory limit: values by a second scorer, and each way that `auto` takes."""

import pytest

from helpers.network_scores import score
from helpers.scripts import script
from pipeplan_formulations import graph
from pipeplan_formulations.common.report import Limits, Status
from pipeplan_formulations.graph import GraphPartition, Stages

networks = script("benchmarks/graphs.py")


def counted(net, problem: GraphPartition, stages: Stages, devices: int, replicas: bool) -> int:
    """The value of a solution by the second scorer."""
    rows = [
        (problem.modes[m].flow, groups, {g for g, v in zip(groups, variants, strict=True) if v})
        for m, groups, variants in stages
    ]
    memory = networks.limit(net, devices, replicas)
    return score(net, rows, devices, memory, networks.MICRO_BATCHES, networks.BANDWIDTH)


@pytest.mark.parametrize("replicas", [False, True])
@pytest.mark.parametrize("kind", ["cnn", "encoder"])
def test_values_equal_those_of_a_second_scorer(kind: str, replicas: bool) -> None:
    """Forty unlike nodes on two devices: proved by CP-SAT, with the value that the second scorer counts."""
    net = networks.KINDS[kind](40, seed=1)
    problem = networks.apart(net, 2, replicas)
    report = graph.solve(problem, Limits(60))
    assert report.status is Status.OPTIMAL
    assert report.solution is not None
    assert report.objective == counted(net, problem, report.solution, 2, replicas)


@pytest.mark.parametrize("backend", graph.BACKENDS)
@pytest.mark.parametrize("replicas", [False, True])
def test_many_unlike_nodes_have_a_plan_within_the_time_limit(backend: str, replicas: bool) -> None:
    """150 unlike nodes on eight devices: every back end has a plan, and ends close to its limit."""
    net = networks.cnn(150, seed=0)
    problem = networks.apart(net, 8, replicas)
    report = graph.solve(problem, Limits(0.7, workers=1), backend=backend)
    assert report.solution is not None
    assert report.objective == counted(net, problem, report.solution, 8, replicas)
    assert 0 < report.bound <= report.objective
