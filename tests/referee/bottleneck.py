"""The largest load of an endless pipeline: what each stage and each boundary spends on one sample."""

from collections import defaultdict
from collections.abc import Sequence

from .prices import Stage, Way


def largest_load(
    stages: Sequence[Stage],
    ways: Sequence[Sequence[tuple[Way, Way]]],
    replicas: Sequence[int],
    micro_batches: int,
    samples: int,
    overlap: str,
    once: Sequence[int] | None = None,
) -> int:
    """Nanoseconds per sample.

    A stage of r replicas works on ⌈M / r⌉ of M micro-batches and sums its gradients once a step (or does what ``once``
    says for it); a device that cannot compute while it sends spends the sending too. Otherwise the busiest link
    resource of each boundary is a load of its own. Where pairs of replicas differ in their links, the fastest one's
    time counts for all.
    """
    sends = [min(way.occupancy for pair in row for way in pair) for row in ways]
    worst = 0
    for s, stage in enumerate(stages):
        busy = stage.forward + stage.backward
        if overlap == "none":
            busy += sum(sends[max(s - 1, 0) : s + 1])
        worst = max(
            worst,
            -(-(-(-micro_batches // replicas[s]) * busy + (stage.reduce if once is None else once[s])) // samples),
        )
    if overlap == "none":
        return worst
    for row, send in zip(ways, sends, strict=True):
        resources: dict[str, list[int]] = defaultdict(list)
        for m, (way, _) in enumerate(row):
            for resource in way.resources:
                resources[resource].append(m)
        most = max(resources.values(), key=len)
        passing = sum(m % len(row) in most for m in range(micro_batches))
        worst = max(worst, passing * send // samples)
    return worst
