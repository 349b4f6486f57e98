"""PipeDream with replicated stages, run with a flush, so that it can be compared with synchronous plans.

PipeDream looks for the least largest stage of an endless pipeline (see `replication`). It sees one kind of device and
neither memory nor the filling and draining of the pipeline.
"""

from typing import Any

from pipeplan.baselines.partitioners.balancer import NotApplicable, require_room, work
from pipeplan.baselines.planners.replication import Level, least_largest_stage
from pipeplan.baselines.planners.structure import Arrangement, Structure
from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.costs.pricing import Prices, price

MOST_OPERATIONS = 5 * 10**8
"""Comparisons beyond which the programme is not begun: some seconds."""


def arrange(model: Model, cluster: Cluster, job: Job, micro_batch: int) -> tuple[Arrangement, ...]:
    """The programme's stages, on all devices in the cluster's order; a layer is timed on the first device.

    Raises
    ------
    NotApplicable
        If the programme would take more than `MOST_OPERATIONS`.
    """
    levels, boxes = levels_of(cluster)
    _refuse_large(len(model.layers), levels)
    devices = cluster.devices
    chain = price(model, cluster, devices, micro_batch, job)
    table = Prices(model, cluster, job).table(devices[0].kind, micro_batch)
    _, parts = least_largest_stage(
        [int(time) for time in work(chain)],
        [int(size) for size in chain.parameters],
        [int(size) for size in table.boundary],
        levels,
        boxes,
    )
    return (Arrangement((0, *(end for _, end, _ in parts)), tuple(devices for _, _, devices in parts)),)


def levels_of(cluster: Cluster) -> tuple[tuple[Level, ...], list[Any]]:
    """Devices of a node, then nodes, and the devices in such boxes.

    The slowest node's link counts. Where nodes hold unequal numbers of devices, all devices are one level over the
    network, as the original knows equal nodes only.
    """
    nodes: list[list[int]] = [[] for _ in cluster.nodes]
    for device in cluster.devices:
        nodes[device.node].append(device.index)
    slowest = min((node.link.bandwidth for node in cluster.nodes if node.link.bandwidth is not None), default=None)
    if len(nodes) == 1:
        return (Level(len(nodes[0]), slowest),), nodes[0]
    assert cluster.network is not None
    if len({len(node) for node in nodes}) > 1:
        return (Level(len(cluster.devices), cluster.network.bandwidth),), [device for node in nodes for device in node]
    inside = len(nodes[0])
    return (Level(inside, slowest), Level(len(nodes), cluster.network.bandwidth, inside)), nodes


def _operations(layers: int, levels: tuple[Level, ...]) -> int:
    starts = [1 if level is levels[-1] else layers for level in levels]
    return sum(count * level.machines**2 // 2 * layers**2 for count, level in zip(starts, levels, strict=True))


def _effort(model: Model, cluster: Cluster) -> int:
    layers, levels = len(model.layers), levels_of(cluster)[0]
    return 3 * (_operations(layers, levels) + sum(level.machines for level in levels) * layers**2)


def _refuse_large(layers: int, levels: tuple[Level, ...]) -> None:
    operations = _operations(layers, levels)
    require_room(layers)
    if operations > MOST_OPERATIONS:
        machines = " x ".join(str(level.machines) for level in reversed(levels))
        raise NotApplicable(
            f"PipeDream's programme compares {operations:.0e} splits of {layers} layers on {machines} machines, and is "
            f"not begun beyond {MOST_OPERATIONS:.0e}"
        )


STRUCTURE = Structure(
    "pipedream-replicated",
    "least largest stage with replicated stages, run with a flush",
    "PipeDream's optimizer, transfers counted, on a chain instead of a graph's antichains; 1F1B with a flush",
    ("1f1b-sno", "1f1b-as"),
    arrange,
    _effort,
)
