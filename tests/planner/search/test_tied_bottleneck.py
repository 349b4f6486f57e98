"""Bottlenecks of plans whose stages share weights."""

from dataclasses import replace

from helpers.instances import model_of
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.job import Job, Objective
from pipeplan.core.model import Tie
from pipeplan.search.evaluate import evaluate
from pipeplan.search.space.space import Space


def test_a_device_that_waits_counts_both_of_its_tensors_beside_the_joint_sum() -> None:
    """Of a copy on the last stage the sum goes over the network, which the partition problem does not know.

    A step of four micro-batches there: work 90 ns each, 7 ns to send a gradient back, and a sum of 2 (500 + 3) ns.
    """
    model = model_of([5, 10, 15, 15], output=[5, 7, 9, 0], parameters=[100, 0, 0, 0])
    model = replace(model, ties=(Tie(("l0", "l2"), 100),))
    nodes = (Node(("unit",), Link(10**9)), Node(("unit",) * 2, Link(10**9)))
    cluster = Cluster("three", {"unit": DeviceKind("unit")}, nodes, Link(10**8, 3), Overlap.NONE)
    space = Space(model, cluster, Job(4, objective=Objective.BOTTLENECK, micro_batches=(4,)))
    (candidate, *_) = space.candidates(tuple((device,) for device in cluster.devices), 1)
    found = evaluate(cluster, candidate, (0, 1, 2, 4)).value
    assert found == -(-(4 * (90 + 7) + 2 * (500 + 3)) // 4) > candidate.problem.evaluate((0, 1, 2, 4))
