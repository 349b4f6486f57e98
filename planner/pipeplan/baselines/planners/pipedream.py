"""PipeDream with replicated stages: its dynamic programme, level by level through nodes and network.

PipeDream minimises the largest stage time of an endless pipeline. It models one kind of device, and neither memory nor
the filling and draining of the pipeline. Its plan is run with a flush here, to be compared with synchronous plans.

A level has m machines and links of bandwidth β between them. Layers a … b − 1 take T on one machine. As a stage on m of
them they cost ::

    max( (T + 4 (m − 1) P / (β m μ)) / m,  2 A_in / (β m),  2 A_out / (β m) )

with P their parameter bytes, A the bytes over the first and last cut, and μ the number of lower-level machines in one
machine of this level. A is 0 at the ends of a level's range, which count in the level above. T is the value of the
programme one level below. (Narayanan et al., PipeDream, SOSP 2019, section 3.1; compute and all-reduce are added up as
in its optimizer.)

::

    level 0   devices of a node     2-1-1
    level 1   2 nodes               one stage on both            together: 4-2-2, every node 2-1-1
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeplan.baselines.partitioners.partitioner import NotApplicable, first_device_times, require_few_layers
from pipeplan.baselines.planners.planner import Arrangement, BaselinePlanner
from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.costs.pricing import Prices, price

Real = NDArray[np.float64]
Span = tuple[int, int, int]
"""First layer, end, machines."""
Part = tuple[int, int, tuple[int, ...]]
"""First layer, end, devices."""


@dataclass(frozen=True)
class Level:
    """Equal machines and the links between them.

    Attributes
    ----------
    machines : int
    bandwidth : int or None
        Bytes per second; None is a free link.
    inside : int
        Machines of the level below in one machine of this one.
    """

    machines: int
    bandwidth: int | None
    inside: int = 1


@dataclass(frozen=True)
class LevelTables:
    """Tables of one level's programme, in nanoseconds; infinite where there is no solution.

    Attributes
    ----------
    stage : array, shape (m + 1, n + 1, n + 1)
        [j, a, b]: time of layers a … b − 1 as one stage on j machines, without its transfers.
    carried : array, shape (m + 1, n + 1)
        [j, c]: transfer time over the cut before layer c, into or out of a stage on j machines.
    before : array, shape (m, starts, n + 1)
        [j, a, b]: the least largest stage time when layers a … b − 1 use j machines, and more stages follow.
    whole : array, shape (starts, n + 1)
        [a, b]: the least largest stage time when layers a … b − 1 use all machines.
    """

    stage: Real
    carried: Real
    before: Real
    whole: Real

    def last_stages(self, own: int) -> Real:
        """Return [a, b]: time of layers a … b − 1 on ``own`` machines, with the transfer into them."""
        loads: Real = np.maximum(self.stage[own], self.carried[own][:, None])
        return loads

    def spans(self, a: int, b: int) -> list[Span]:
        """Return the stages of the optimum ``whole[a, b]``, in order."""
        goal, left, end, found = self.whole[a, b], len(self.stage) - 1, b, list[Span]()
        while left:
            start, own = self._last(a, end, left, goal, closing=bool(found))
            found.append((start, end, own))
            left, end = left - own, start
            goal = self.before[left, a, end] if left else goal
        return found[::-1]

    def _last(self, a: int, end: int, machines: int, goal: float, closing: bool) -> tuple[int, int]:
        """Return first layer and machines of the last stage of an optimum; ``closing``: another stage follows."""
        for own in range(1, machines):
            loads = np.maximum(self.before[machines - own, a], self.last_stages(own)[:, end])
            if closing:
                loads = np.maximum(loads, self.carried[own, end])
            if loads.min() == goal:
                return int(loads.argmin()), own
        return a, machines


def solve_level(times: Real, parameters: Real, crossing: Real, level: Level, starts: int) -> LevelTables:
    """Solve the programme of one level, in O(starts m² n²).

    Parameters
    ----------
    times : array, shape (n + 1, n + 1)
        [a, b]: nanoseconds that layers a … b − 1 take on one machine; infinite for b ≤ a.
    parameters : array, shape (n + 1,)
        Bytes before each layer: prefix sums.
    crossing : array, shape (n + 1,)
        Bytes over the cut before each layer; 0 at both ends.
    starts : int
        Only ranges that begin with one of the first ``starts`` layers are solved.
    """
    total, n = level.machines, len(parameters) - 1
    per_byte = 0.0 if level.bandwidth is None else 1e9 / level.bandwidth
    weights = parameters[None, :] - parameters[:, None]
    stage = np.full((total + 1, n + 1, n + 1), np.inf)
    carried = np.zeros((total + 1, n + 1))
    for j in range(1, total + 1):  # a stage on j machines: compute and all-reduce, and transfers at its cuts
        stage[j] = (times + 4 * (j - 1) * weights * per_byte / (j * level.inside)) / j
        carried[j] = 2 * crossing * per_byte / j
    solved = LevelTables(stage, carried, np.full((total, starts, n + 1), np.inf), stage[total, :starts].copy())
    for j in range(1, total + 1):
        follows = j < total  # with machines left, a stage follows and the last cut carries a tensor
        best = np.maximum(stage[j, :starts], carried[j]) if follows else solved.whole  # all layers as one stage
        for own in range(1, j):  # machines of the last stage; the stages before it use the other j − own
            last = solved.last_stages(own)
            if follows:
                last = np.maximum(last, carried[own])
            for a in range(starts):
                np.minimum(best[a], np.maximum(solved.before[j - own, a][:, None], last).min(axis=0), out=best[a])
        if follows:
            solved.before[j] = best
    return solved


def least_largest_stage(
    times: Sequence[int], parameters: Sequence[int], crossing: Sequence[int], levels: Sequence[Level], boxes: Any
) -> tuple[float, list[Part]]:
    """Return the least largest stage time in nanoseconds, and its stages.

    Parameters
    ----------
    times, parameters : sequence of int, length n
        Nanoseconds and bytes of each layer on one device.
    crossing : sequence of int, length n − 1
        Bytes over each cut.
    levels : sequence of Level
        Innermost first.
    boxes : nested sequences of int
        The devices: a list of the outermost level's machines, each a list of machines one level below, down to device
        numbers.
    """
    n = len(times)
    sums, bytes_ahead = (np.concatenate([[0.0], np.cumsum(values, dtype=float)]) for values in (times, parameters))
    cuts = np.concatenate([[0.0], np.asarray(crossing, float), [0.0]])
    alone = np.where(np.tri(n + 1, n + 1, 0, dtype=bool), np.inf, sums[None, :] - sums[:, None])
    solved: list[LevelTables] = []
    for level in levels:
        outermost = level is levels[-1]
        solved.append(solve_level(alone, bytes_ahead, cuts, level, 1 if outermost else n))
        alone = np.vstack([solved[-1].whole, np.full((n + 1 - len(solved[-1].whole), n + 1), np.inf)])
    return float(solved[-1].whole[0, n]), _nested_parts(solved, 0, n, [boxes])


def _nested_parts(solved: Sequence[LevelTables], a: int, b: int, boxes: Sequence[Any]) -> list[Part]:
    """Return the stages of layers a … b − 1; every box uses its machines at the same positions."""
    if not solved:
        return [(a, b, tuple(boxes))]
    found: list[Part] = []
    place = 0
    for start, end, own in solved[-1].spans(a, b):
        machines = [machine for box in boxes for machine in box[place : place + own]]
        found += _nested_parts(solved[:-1], start, end, machines)
        place += own
    return found


MOST_OPERATIONS = 5 * 10**8
"""Comparisons beyond which the programme is not started: some seconds."""


def arrange(model: Model, cluster: Cluster, job: Job, micro_batch: int) -> tuple[Arrangement, ...]:
    """Return the programme's stages on all devices in the cluster's order; layers are timed on the first device.

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
        [int(time) for time in first_device_times(chain)],
        [int(size) for size in chain.parameters],
        [int(size) for size in table.boundary],
        levels,
        boxes,
    )
    return (Arrangement((0, *(end for _, end, _ in parts)), tuple(devices for _, _, devices in parts)),)


def levels_of(cluster: Cluster) -> tuple[tuple[Level, ...], list[Any]]:
    """Return the levels (devices of a node, then nodes), and the devices nested by level.

    The slowest node's link counts. Where nodes hold unequal numbers of devices, all devices are one level over the
    network, because the original supports equal nodes only.
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
    require_few_layers(layers)
    if operations > MOST_OPERATIONS:
        machines = " x ".join(str(level.machines) for level in reversed(levels))
        raise NotApplicable(
            f"PipeDream's programme compares {operations:.0e} splits of {layers} layers on {machines} machines, and is "
            f"not begun beyond {MOST_OPERATIONS:.0e}"
        )


PLANNER = BaselinePlanner(
    "pipedream-replicated",
    "least largest stage with replicated stages, run with a flush",
    "PipeDream's optimizer, transfers counted, on a chain instead of a graph's antichains; 1F1B with a flush",
    ("1f1b-sno", "1f1b-as"),
    arrange,
    _effort,
)
