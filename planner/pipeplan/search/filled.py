"""More micro-batches in flight where there is room: what 1F1B may still gain on a given partition.

::

    stage               0    1    2    3
    fewest (SNO)        4    3    2    1      keep all devices busy if tensors travel in no time
    most (SO)           7    5    3    1      hide tensors that travel while devices compute
    fit in memory       9    3    5    8
    chosen              7    3    2    1      falling along the pipeline, as all counts that are looked at
"""

from collections.abc import Sequence
from dataclasses import replace

from pipeplan.chain import UNLIMITED, Boundaries
from pipeplan.cluster import Cluster
from pipeplan.pricing import assemble
from pipeplan.search.candidates import Candidate
from pipeplan.search.flights import Box, free_family


def fuller(cluster: Cluster, candidate: Candidate, boundaries: Boundaries, box: Box | None = None) -> Candidate | None:
    """The candidate with as many micro-batches in flight as fit on this partition; None if that is nothing new.

    ``box``: the counts that are asked for; by default all.
    """
    if not candidate.free or not candidate.family.alternates:
        return None
    pipeline = assemble(candidate.chain, cluster, boundaries, candidate.recompute(boundaries))
    rooms, device = [], 0
    for stage, replicas in zip(pipeline.stages, candidate.replicas, strict=True):
        limit = pipeline.limits[device]
        left = limit - pipeline.runtime[device] - stage.resident - stage.workspace
        rooms.append(left // stage.held if stage.held and limit != UNLIMITED else UNLIMITED)
        device += replicas
    counts = filled(box or Box.of(candidate.replicas, candidate.micro_batches), rooms)
    if counts == candidate.in_flight:
        return None
    other = replace(candidate, family=free_family(counts))
    return other if other.fits(boundaries) else None


def filled(box: Box, rooms: Sequence[int]) -> tuple[int, ...]:
    """Micro-batches in flight for each stage, where ``rooms`` are those that fit; at least the box's least."""
    replicas = box.replicas
    counts: list[int] = []
    allowed = UNLIMITED  # excess that the stages before leave
    for s, (low, high, room) in enumerate(zip(box.low, box.high, rooms, strict=True)):
        width, units = replicas[s], sum(replicas[s:])
        count = max(low, min(high, room, (units + allowed) // width))
        counts.append(count)
        if count < box.shares[s]:
            allowed = min(allowed, count * width - units)
    return tuple(counts)
