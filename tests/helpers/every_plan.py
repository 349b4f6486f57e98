"""Oracle of small problems: every GPipe plan without replicas, timed by the simulator, with memory counted apart."""

from collections.abc import Iterator
from itertools import combinations, pairwise, permutations

from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.costs.chain import UNLIMITED
from pipeplan.costs.layers import layer_costs
from pipeplan.schedules import FAMILIES
from pipeplan.simulate import simulate


def every_plan(model: Model, cluster: Cluster, job: Job) -> Iterator[tuple[int, int]]:
    """Step time and bytes of the fullest device of every plan that fits, for devices of one node.

    Every micro-batch size that is profiled, every partition of the chain, every choice of kinds along the pipeline.
    """
    n, kinds = len(model.layers), [device.kind for device in cluster.devices]
    for size in sorted({profile.micro_batch for profile in model.profiles}):
        if job.batch % size:
            continue
        for depth in range(1, min(n, len(kinds)) + 1):
            rows = {tuple(kind.name for kind in row): row for row in permutations(kinds, depth)}
            for inner in combinations(range(1, n), depth - 1):
                for row in rows.values():
                    pipeline, needs = _pipeline(model, cluster, row, (0, *inner, n), size, job.batch // size)
                    limits = [min(kind.memory or UNLIMITED, job.memory or UNLIMITED) for kind in row]
                    if all(need <= limit for need, limit in zip(needs, limits, strict=True)):
                        schedule = FAMILIES["gpipe"].write((1,) * depth, job.batch // size)
                        yield simulate(schedule, pipeline).makespan, max(needs)


def _pipeline(
    model: Model, cluster: Cluster, row: tuple[DeviceKind, ...], boundaries: tuple[int, ...], size: int, count: int
) -> tuple[Pipeline, list[int]]:
    """The pipeline, and the bytes that each of its devices needs."""
    link = cluster.nodes[0].link
    stages, needs, ways, back = [], [], [], []
    for s, (a, b) in enumerate(pairwise(boundaries)):
        costs = layer_costs(model, row[s], size)
        received = costs[a - 1].output if a else 0
        held = sum(cost.saved for cost in costs[a:b]) + received
        resident = 2 * sum(layer.parameters for layer in model.layers[a:b])
        stages.append(
            Stage(
                forward=sum(cost.forward for cost in costs[a:b]),
                backward=sum(cost.backward for cost in costs[a:b]),
                update=sum(cost.update for cost in costs[a:b]),
                resident=resident,
                held=held,
            )
        )
        needs.append(resident + count * held)
        if a:
            occupancy = link.occupancy(received)
            ways.append((Transfer(received, occupancy, link.latency, (f"d{s - 1} to d{s}",)),))
            back.append((Transfer(received, occupancy, link.latency, (f"d{s} to d{s - 1}",)),))
    depth = len(stages)
    pipeline = Pipeline(
        stages=tuple(stages),
        placement=tuple((s,) for s in range(depth)),
        transfers=tuple(ways),
        returns=tuple(back),
        overlap=cluster.overlap,
        runtime=(0,) * depth,
        limits=(UNLIMITED,) * depth,
    )
    return pipeline, needs
