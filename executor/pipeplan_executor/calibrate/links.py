"""Corrected links and runtimes of a cluster, by a plan's measured transfers, reductions and peaks.

A link's bandwidth and latency change by one factor, since one size of tensor does not determine both. Reductions have
their own factor, in the link's efficiency in collectives. The difference of a rank's measured and simulated peak is
added to its runtime's memory.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from statistics import median

from pipeplan.core.cluster import Cluster, DeviceKind, Link
from pipeplan.core.pipeline import Pipeline
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
    return Link(max(round(link.bandwidth / factor), 1), latency, float(f"{efficiency:.6g}"))


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
    """Return the time and rounds of a reduction per link, if its bytes were predicted to take any time.

    Stages whose gradients are summed beside the backward are left out: how long those sums take is not seen.
    """
    found: dict[LinkPlace, list[tuple[Pair, int]]] = defaultdict(list)
    for s, stage in enumerate(pipeline.stages):
        if any(bucket.layers for bucket in stage.buckets):
            continue
        took = seen.actions.get((s, Kind.REDUCE))
        stages = next((group for group in pipeline.tied if s in group), (s,))
        ranks = {rank for each in stages for rank in pipeline.placement[each]}
        where, rounds = _link_place(cluster, (plan.ranks[rank] for rank in ranks)), 2 * (len(ranks) - 1)
        link = cluster.network if where is None else cluster.nodes[where].link
        if took is not None and link is not None and stage.reduce > rounds * link.latency:
            found[where].append(((took, stage.reduce), rounds))
    return {where: sorted(rows, key=lambda row: _ratio(row[0]))[len(rows) // 2] for where, rows in found.items()}


def _ratio(pair: Pair) -> float:
    return pair[0] / max(pair[1], 1)


def _with_runtime(kind: DeviceKind, cluster: Cluster, plan: Plan, peaks: tuple[int, ...], seen: Observed) -> DeviceKind:
    own = [rank for rank, device in enumerate(plan.ranks) if cluster.devices[device].kind.name == kind.name]
    more = [seen.peaks[rank] - peaks[rank] for rank in own if rank < len(seen.peaks) and seen.peaks[rank]]
    return replace(kind, runtime=max(kind.runtime + round(median(more)), 0)) if more else kind
