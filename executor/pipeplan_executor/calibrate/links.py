"""Corrected links and runtimes of a cluster, by a plan's measured transfers, reductions and peaks.

A link's bandwidth and latency change by one factor, since one size of tensor does not determine both. Reductions have
their own factor, in the link's efficiency in collectives. The difference of a rank's measured and simulated peak is
added to its runtime's memory.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from pipeplan.core.cluster import Cluster, DeviceKind, Link
from pipeplan.core.pipeline import Bucket, Pipeline, Stage, exposed
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Kind
from pipeplan_executor.calibrate.observed import Observed

LinkPlace = int | None
"""A node's own link, or the network."""
Pair = tuple[int, int]
"""Nanoseconds, measured and predicted."""


def calibrated_cluster(
    cluster: Cluster, plan: Plan, pipeline: Pipeline, peaks: tuple[int, ...], seen: Observed
) -> Cluster:
    """Return the cluster under which the plan's transfers, reductions and peaks are the measured ones.

    Links without transfers, or for whose transfers no receiver waited, stay unchanged.

    Parameters
    ----------
    pipeline : Pipeline
        Pipeline of the plan with the costs of the model and the cluster.
    peaks : tuple of int
        Simulated peak of each rank, in bytes.
    """
    transfer_times, reduction_times = (
        _transfer_times(cluster, plan, pipeline, seen),
        _reduction_times(cluster, plan, pipeline, seen),
    )

    def changed(where: LinkPlace, link: Link) -> Link:
        return with_times(link, transfer_times.get(where, (1, 1)), *reduction_times.get(where, (None, 0)))

    note = f"calibrated from {seen.steps} steps of a plan for {plan.model}, {plan.schedule.family}"
    return replace(
        cluster,
        kinds={name: _with_runtime(kind, cluster, plan, peaks, seen) for name, kind in cluster.kinds.items()},
        nodes=tuple(replace(node, link=changed(n, node.link)) for n, node in enumerate(cluster.nodes)),
        network=None if cluster.network is None else changed(None, cluster.network),
        notes=(*(old for old in cluster.notes if not old.startswith("calibrated from ")), note),
    )


def with_times(link: Link, transfer: Pair, total: Pair | None, rounds: int) -> Link:
    """Return the link on which a transfer takes its measured time, and so does a reduction of ``rounds`` rounds.

    A free link gets the transfer's time as its latency.
    """
    took, predicted = transfer
    if not predicted:
        return replace(link, latency=took)
    factor = took / predicted
    latency = round(link.latency * factor)
    if link.bandwidth is None:
        return replace(link, latency=latency)
    efficiency = link.collective_efficiency * factor  # relative to the new bandwidth: rounds take as long as before
    if total is not None:
        efficiency *= (total[1] - rounds * link.latency) / max(total[0] - rounds * latency, 1)
    bandwidth = max(round(link.bandwidth / factor), 1)
    return replace(link, bandwidth=bandwidth, latency=latency, collective_efficiency=float(f"{efficiency:.6g}"))


def _link_place(cluster: Cluster, devices: Iterable[int]) -> LinkPlace:
    nodes = {cluster.devices[device].node for device in devices}
    return nodes.pop() if len(nodes) == 1 else None


def _transfer_times(cluster: Cluster, plan: Plan, pipeline: Pipeline, seen: Observed) -> dict[LinkPlace, Pair]:
    """Return the time of a transfer per link, without the reader's gap, which counts as part of the reader."""
    found: dict[LinkPlace, list[Pair]] = defaultdict(list)
    for route, took in seen.transfers.items():
        rows = pipeline.transfers if route.source < route.target else pipeline.returns
        row = rows[min(route.source, route.target)]
        pairs = [(pipeline.device_of(route.source, m), pipeline.device_of(route.target, m)) for m in range(len(row))]
        transfer = row[pairs.index((route.source_rank, route.target_rank))]
        where = _link_place(cluster, (plan.ranks[route.source_rank], plan.ranks[route.target_rank]))
        gap = seen.gaps[route.target_rank]
        found[where].append((max(took - gap, 1), transfer.occupancy + transfer.latency))
    return {where: sorted(pairs, key=_ratio)[len(pairs) // 2] for where, pairs in found.items()}


def _reduction_times(
    cluster: Cluster, plan: Plan, pipeline: Pipeline, seen: Observed
) -> dict[LinkPlace, tuple[Pair, int]]:
    """Return the time and rounds of a reduction per link, if its bytes were predicted to take any time."""
    found: dict[LinkPlace, list[tuple[Pair, int]]] = defaultdict(list)
    for s, stage in enumerate(pipeline.stages):
        took = seen.actions.get((s, Kind.REDUCE))
        buckets = stage.buckets or (Bucket(len(plan.stages[s].layers), 0, stage.reduce),)
        stages = next((group for group in pipeline.tied if s in group), (s,))
        ranks = {rank for each in stages for rank in pipeline.placement[each]}
        where = _link_place(cluster, (plan.ranks[rank] for rank in ranks))
        rounds = (1 if plan.zero and len(stages) == 1 else 2) * (len(ranks) - 1)
        link = cluster.network if where is None else cluster.nodes[where].link
        predicted = sum(bucket.time for bucket in buckets)
        rounds *= sum(1 for bucket in buckets if bucket.layers or len(stages) > 1)  # others are lost computation
        if took is not None and link is not None and predicted > rounds * link.latency:
            whole = _whole(_later(buckets, stage, s, seen), took)
            if whole is not None:
                found[where].append(((whole, predicted), rounds))
    return {where: sorted(rows, key=lambda row: _ratio(row[0]))[len(rows) // 2] for where, rows in found.items()}


def _later(buckets: Sequence[Bucket], stage: Stage, s: int, seen: Observed) -> list[Bucket]:
    """Buckets that are ready as long before the end of the last backward as measured backwards say."""
    kind = Kind.BACKWARD if (s, Kind.BACKWARD) in seen.actions else Kind.WEIGHT_GRADIENT
    slower = seen.actions.get((s, kind), stage.total(kind)) / max(stage.total(kind), 1)
    return [replace(bucket, ready=round(slower * bucket.ready)) for bucket in buckets]


def _whole(buckets: Sequence[Bucket], took: int) -> int | None:
    """Nanoseconds of all sums together if ``took`` of them is exposed; None if that is all hidden anyhow.

    Every sum is slower by one factor, the largest with which no more is exposed.
    """

    def slower(factor: float) -> list[Bucket]:
        return [replace(bucket, time=round(factor * bucket.time)) for bucket in buckets]

    if took <= 0 and exposed(buckets) <= 0:
        return None
    low, high = 0.0, 1.0
    while exposed(slower(high)) <= took:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if exposed(slower(middle)) <= took else (low, middle)
    return sum(bucket.time for bucket in slower(low))


def _ratio(pair: Pair) -> float:
    return pair[0] / max(pair[1], 1)


def _with_runtime(kind: DeviceKind, cluster: Cluster, plan: Plan, peaks: tuple[int, ...], seen: Observed) -> DeviceKind:
    own = [rank for rank, device in enumerate(plan.ranks) if cluster.devices[device].kind.name == kind.name]
    more = [seen.peaks[rank] - peaks[rank] for rank in own if rank < len(seen.peaks) and seen.peaks[rank]]
    return replace(kind, runtime=max(kind.runtime + round(median(more)), 0)) if more else kind
