"""Placements of equal replicas on nodes: tiles, of which the best is found."""

import pytest

from helpers.instances import model_of
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.job import Job, Recompute
from pipeplan.core.model import Model
from pipeplan.costs.assembly import assemble
from pipeplan.costs.pricing import price
from pipeplan.schedules import FAMILIES
from pipeplan.simulate import makespan
from pipeplan.solve import solve

NODE = Node(("unit",) * 4, Link(10**9))
CLUSTER = Cluster("two nodes of four", {"unit": DeviceKind("unit")}, (NODE, NODE), Link(10**8))
TILES = {1: ((0, 4), (1, 5), (2, 6), (3, 7)), 2: ((0, 1), (2, 3), (4, 5), (6, 7))}
"""Devices of four stages of two replicas, by the replicas of a stage in one node."""


def value(model: Model, tile: int, job: Job) -> int:
    """The step time of one layer per stage on these devices."""
    groups = [tuple(CLUSTER.devices[d] for d in own) for own in TILES[tile]]
    pipeline = assemble(price(model, CLUSTER, groups, 1, job), CLUSTER, (0, 1, 2, 3, 4))
    return makespan(FAMILIES["gpipe"].write((2,) * 4, 8), pipeline)


@pytest.mark.parametrize(("output", "parameters", "best"), [(20, 1, 1), (1, 4000, 2)])
def test_the_best_tile_is_found(output: int, parameters: int, best: int) -> None:
    """Large activations stay in nodes, each stage on both; large gradients stay in nodes, each stage in one."""
    model = model_of([50] * 4, output=[output] * 4, parameters=[parameters] * 4)
    asked = {"micro_batches": (8,), "schedules": ("gpipe",), "depths": (4,), "replicas": (2,), "zero": (0,)}
    job = Job(8, recompute=Recompute.NONE, **asked)
    values = {tile: value(model, tile, job) for tile in TILES}
    assert values[best] < values[3 - best]
    assert solve(model, CLUSTER, job=job).plan.step_time == values[best]
