"""One step of delay: lists through several batches without a flush, the time from batch to batch, and the load."""

from collections.abc import Sequence

from . import bottleneck, simulate
from .prices import Stage, Way
from .schedules import Action, Family

BATCHES = 7
"""Batches that are run; the two before the last one, which has an update less, are timed."""


def lists(
    family: Family, replicas: Sequence[int], count: int, summed: set[int], gathering: set[int]
) -> list[list[Action]]:
    """One list for each replica; forwards and backwards of all batches as of one long step.

    Sums and gathers stand where they are started; what is theirs runs beside the list. Gradients of batch t change the
    weights of batch t + 2.
    """
    found = []
    for s, r in enumerate(replicas):
        for j in range(r):
            own = [batch * count + m for batch in range(BATCHES) for m in range(j, count, r)]
            share = count // r
            ahead = family.in_flight[s]
            order: list[Action] = [("F", s, m) for m in own[:ahead]]
            for i, m in enumerate(own):
                order.append(("B", s, m))
                order += [("F", s, later) for later in own[i + ahead : i + ahead + 1]]
            for batch in range(BATCHES):
                last = order.index(("B", s, own[(batch + 1) * share - 1]))
                update: list[Action] = [("U", s, batch), *[("G", s, batch)] * (s in gathering)]
                if batch + 2 >= BATCHES:
                    order += update
                else:
                    first = order.index(("F", s, own[(batch + 2) * share]))
                    between = [k for k in range(last + 1, first) if order[k][0] in "FB"]
                    half = len(between) // 2
                    place = between[half - half % 2] + 1 if s in gathering else first
                    order[place:place] = update
                if r > 1 or s in summed:
                    order.insert(last + 1, ("R", s, batch))
            found.append(order)
    return found


def period(
    family: Family,
    replicas: Sequence[int],
    count: int,
    homes: Sequence[Sequence[int]],
    stages: Sequence[Stage],
    ways: Sequence[Sequence[tuple[Way, Way]]],
    overlap: str,
    tied: Sequence[set[int]],
) -> int:
    """Nanoseconds from batch to batch, rounded up: the mean of two, and no less than the load."""
    summed = {s for group in tied for s in group}
    gathering = {s for s, stage in enumerate(stages) if stage.gather}
    run = lists(family, replicas, count, summed, gathering)
    step = simulate.simulate(run, homes, stages, ways, overlap, tied=tied, beside=True)
    ends = [0] * BATCHES
    for i, (_, (kind, s, m)) in enumerate(step.actions):
        if kind == "B" and s == 0:
            ends[m // count] = max(ends[m // count], step.end[i])
    return max(-(-(ends[-2] - ends[-4]) // 2), load(stages, ways, replicas, count, overlap, summed))


def load(
    stages: Sequence[Stage],
    ways: Sequence[Sequence[tuple[Way, Way]]],
    replicas: Sequence[int],
    count: int,
    overlap: str,
    summed: set[int],
) -> int:
    """Nanoseconds of a batch: the work and the update of a device, what is summed and gathered beside it, or a link."""
    beside = [
        stage.gather + stage.reduce * (r > 1 or s in summed)
        for s, (stage, r) in enumerate(zip(stages, replicas, strict=True))
    ]
    busy = bottleneck.largest_load(stages, ways, replicas, count, 1, overlap, [stage.update for stage in stages])
    return max(busy, *beside)
