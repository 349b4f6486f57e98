"""Lists of replicas that are alike: one lane of them is checked for all.

Let g divide the number of replicas of every stage, and that of the micro-batches. Micro-batches of one remainder modulo
g run on replicas of that remainder only, and so are a *lane*. Lanes are alike if each has the lists of the first one, j
micro-batches later::

    stage 0    d0  0F0 0F2 0B0 …     d1  0F1 0F3 0B1 …          lane 0: d0 d2, lane 1: d1 d3
    stage 1    d2  1F0 1B0 …         d3  1F1 1B1 …

They meet in sums and updates only. Whenever one of them may run, so may the others: all of them run in step, and what
holds for the first one holds for the rest. (Thousands of replicas have as many lanes.)
"""

from collections.abc import Sequence
from itertools import chain, repeat
from math import gcd
from operator import add, mul
from typing import Any

from pipeplan.core.schedule import Action, Schedule


def like_lanes(schedule: Schedule, placement: Sequence[Sequence[int]]) -> int:
    """Return the number of lanes if all of them are alike, else 1."""
    count = gcd(*map(len, placement), schedule.micro_batches)
    if count < 2:
        return 1
    lanes = [[rank for own in placement for rank in own[j::count]] for j in range(count)]
    if sorted({*chain.from_iterable(lanes)}) != [*range(len(schedule.orders))]:
        return 1
    if schedule.lanes == count:  # its lists are made so: it remains that ranks are
        starts = [rank - rank % count for rank in lanes[0]]
        return count if all(lane == [rank + j for rank in starts] for j, lane in enumerate(lanes)) else 1
    orders = schedule.orders
    first = {rank: _columns(orders[rank]) for rank in lanes[0]}
    flags = {rank: [action.kind.per_micro_batch for action in orders[rank]] for rank in first}
    if any(action.kind.per_micro_batch and action.micro_batch % count for rank in first for action in orders[rank]):
        return 1
    used = {*first}
    for j, lane in enumerate(lanes[1:], 1):
        pairs = {*zip(lanes[0], lane, strict=True)}
        own = {rank for _, rank in pairs}
        if len(pairs) > len(first) or len(own) < len(first) or own & used:
            return 1  # ranks hold other stages together, or those of several lanes
        used |= own
        for rank, other in pairs:
            kinds, stages, numbers, parts = first[rank]
            later = tuple(map(add, numbers, map(mul, flags[rank], repeat(j))))
            if _columns(orders[other]) != (kinds, stages, later, parts):
                return 1
    return count


def first_lane(
    schedule: Schedule, placement: Sequence[Sequence[int]], count: int
) -> tuple[Schedule, Sequence[Sequence[int]]]:
    """Return the lists and the placement of the first of so many like lanes, its micro-batches counted from 0."""
    ranks = sorted({rank for own in placement for rank in own[::count]})
    place = {rank: number for number, rank in enumerate(ranks)}
    orders = tuple(
        tuple(
            Action(kind, stage, m // count if kind.per_micro_batch else m, part)
            for kind, stage, m, part in schedule.orders[rank]
        )
        for rank in ranks
    )
    homes = [[place[rank] for rank in own[::count]] for own in placement]
    return Schedule(schedule.family, orders, schedule.two_lanes), homes


def _columns(order: Sequence[Action]) -> tuple[tuple[Any, ...], ...]:
    """Return kinds, stages, micro-batches and slices of a list."""
    return tuple(zip(*order, strict=True)) or ((), (), (), ())
