"""The largest load of an endless pipeline: what each stage and each wire spends on one micro-batch."""

from collections import defaultdict
from collections.abc import Sequence

from .costs import Groups, Prices, Stage, Way, ring


def ring_times(prices: Prices, groups: Groups, layers: Sequence[Sequence[int]]) -> list[int]:
    """Nanoseconds a step in which the replicas of each stage sum their gradients."""
    found = []
    for s, own in enumerate(layers):
        around = ring(prices.question, groups, (s,))
        moves = [around.moves(prices.question.parameters[i]) for i in own]
        found.append(sum(moves) + (around.latency if any(moves) else 0))
    return found


def largest_load(
    stages: Sequence[Stage],
    ways: Sequence[Sequence[tuple[Way, Way]]],
    replicas: Sequence[int],
    micro_batches: int,
    overlap: str,
    rings: Sequence[int],
) -> int:
    """Nanoseconds per micro-batch.

    A stage of r replicas works on ⌈M / r⌉ of M micro-batches and sums its gradients once; a device that cannot compute
    while it sends spends the sending too. Otherwise the busiest wire of each boundary is a load of its own.
    """
    worst = 0
    for s, stage in enumerate(stages):
        busy = stage.forward + stage.backward
        if overlap == "none":
            busy += min(way.occupancy for way, _ in ways[s]) if s + 1 < len(stages) else 0
            busy += min(way.occupancy for _, way in ways[s - 1]) if s else 0
        step = -(-micro_batches // replicas[s]) * busy + rings[s]
        worst = max(worst, -(-step // micro_batches))
    if overlap == "none":
        return worst
    for row in ways:
        for back in (0, 1):
            wires: dict[str, int] = defaultdict(int)
            for m in range(micro_batches):
                way = row[m % len(row)][back]
                for wire in way.wires:
                    wires[wire] += way.occupancy
            worst = max(worst, max(wires.values(), default=0) // micro_batches)
    return worst
