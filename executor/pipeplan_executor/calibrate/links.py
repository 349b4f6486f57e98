"""Corrected links and runtimes of a cluster, by a plan's measured transfers, reductions and peaks.

A link's bandwidth and latency change by one factor, since one size of tensor cannot tell them apart. Reductions have a
factor of their own, which the link's efficiency in collectives takes. What a rank's peak lies above or below the
simulated one counts as its runtime's.
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

Where = int | None
"""A node's own link, or the network."""
Pair = tuple[int, int]
"""Nanoseconds, measured and predicted."""


def calibrated_cluster(
    cluster: Cluster, plan: Plan, pipeline: Pipeline, peaks: tuple[int, ...], seen: Observed
) -> Cluster:
    """The cluster under which the plan's tensors travel, and its ranks hold, what was seen.

    Links that no tensor took, or for which no receiver waited, stay as they are.

    Parameters
    ----------
    pipeline : Pipeline
        The plan as the model and the cluster price it.
    peaks : tuple of int
        Bytes that were simulated for each rank.
    """
    ways, sums = _ways(cluster, plan, pipeline, seen), _sums(cluster, plan, pipeline, seen)

    def changed(where: Where, link: Link) -> Link:
        return with_times(link, ways.get(where, (1, 1)), *sums.get(where, (None, 0)))

    note = f"calibrated from {seen.steps} steps of a plan for {plan.model}, {plan.schedule.family}"
    return replace(
        cluster,
        kinds={name: _with_runtime(kind, cluster, plan, peaks, seen) for name, kind in cluster.kinds.items()},
        nodes=tuple(replace(node, link=changed(n, node.link)) for n, node in enumerate(cluster.nodes)),
        network=None if cluster.network is None else changed(None, cluster.network),
        notes=(*(old for old in cluster.notes if not old.startswith("calibrated from ")), note),
    )


def with_times(link: Link, way: Pair, total: Pair | None, rounds: int) -> Link:
    """The link on which a tensor takes as long as was measured, and so does a reduction of so many rounds.

    A free link gets the tensor's time as its latency.
    """
    took, predicted = way
    if not predicted:
        return replace(link, latency=took)
    factor = took / predicted
    latency = round(link.latency * factor)
    if link.bandwidth is None:
        return replace(link, latency=latency)
    efficiency = link.collective_efficiency * factor  # of the bandwidth that it has now: rounds take what they took
    if total is not None:
        efficiency *= (total[1] - rounds * link.latency) / max(total[0] - rounds * latency, 1)
    return Link(max(round(link.bandwidth / factor), 1), latency, float(f"{efficiency:.6g}"))


def _where(cluster: Cluster, devices: Iterable[int]) -> Where:
    nodes = {cluster.devices[device].node for device in devices}
    return nodes.pop() if len(nodes) == 1 else None


def _ways(cluster: Cluster, plan: Plan, pipeline: Pipeline, seen: Observed) -> dict[Where, Pair]:
    """What a tensor took; when it has come, its reader's gap goes by, which is priced with the reader."""
    found: dict[Where, list[Pair]] = defaultdict(list)
    for way, took in seen.flights.items():
        rows = pipeline.transfers if way.source < way.target else pipeline.returns
        row = rows[min(way.source, way.target)]
        pairs = [(pipeline.device_of(way.source, m), pipeline.device_of(way.target, m)) for m in range(len(row))]
        transfer = row[pairs.index((way.source_rank, way.target_rank))]
        where = _where(cluster, (plan.ranks[way.source_rank], plan.ranks[way.target_rank]))
        gap = seen.gaps[way.target_rank]
        found[where].append((max(took - gap, 1), transfer.occupancy + transfer.latency))
    return {where: sorted(pairs, key=_ratio)[len(pairs) // 2] for where, pairs in found.items()}


def _sums(cluster: Cluster, plan: Plan, pipeline: Pipeline, seen: Observed) -> dict[Where, tuple[Pair, int]]:
    """What a reduction took, and in how many rounds; where moving its bytes was predicted to take any time."""
    found: dict[Where, list[tuple[Pair, int]]] = defaultdict(list)
    for s, stage in enumerate(pipeline.stages):
        took = seen.actions.get((s, Kind.REDUCE))
        members = next((group for group in pipeline.tied if s in group), (s,))
        ranks = {rank for member in members for rank in pipeline.placement[member]}
        where, rounds = _where(cluster, (plan.ranks[rank] for rank in ranks)), 2 * (len(ranks) - 1)
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
