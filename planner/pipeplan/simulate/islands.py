"""Islands: lanes of a pipeline that share no resource with others, of which like ones are simulated once.

Lanes are those of `pipeplan.simulate.recurrence.lanes`. Some of them on some nodes, whose stages have as many replicas
in each node, often meet no others. Micro-batches and replicas of an island keep their order, so it runs as if it were
alone::

    node 0   d0 d1 │ d2 d3     stages 0 and 1, two replicas each     island 0    micro-batches 0, 1, 4, 5 … as 0, 1, 2 …
    node 1   d4 d5 │ d6 d7                                           island 1    micro-batches 2, 3, 6, 7 …

Thousands of replicas are often on one kind of island. Sums of gradients begin when the last island has ended its
backwards, and a step ends with the last of them: so it takes as long as the longest of the islands.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import chain
from math import gcd

import numpy as np

from pipeplan.core.pipeline import Pipeline, Transfer
from pipeplan.core.schedule import Action, Schedule
from pipeplan.core.validate.lanes import like_lanes
from pipeplan.simulate import makespan
from pipeplan_formulations.common.sentinels import UNLIMITED


def islands(pipeline: Pipeline, micro_batches: int) -> Iterator[tuple[Pipeline, int]]:
    """Yield the islands that differ, with their numbers of micro-batches; of a single one the pipeline itself."""
    divisor = gcd(*pipeline.replicas)
    for alike in _alike(pipeline, micro_batches):
        yield _island(pipeline, micro_batches, alike[0]), len(_of(alike[0], divisor, micro_batches))


def longest_makespan(schedule: Schedule, pipeline: Pipeline) -> int:
    """Return the makespan of a schedule that is complete, in nanoseconds; islands with like lists are simulated once.

    Raises
    ------
    PlanError
        As in `pipeplan.simulate.simulate`, of an island's lists.
    """
    many = schedule.micro_batches
    alike = list(_alike(pipeline, many)) if schedule.batches == 1 and _in_lanes(pipeline) else []
    if not alike or (pipeline.coupled and len(alike) > 1) or len(alike[0][0]) == min(gcd(*pipeline.replicas), many):
        return makespan(schedule, pipeline)
    longest, like = 0, like_lanes(schedule, pipeline.placement)
    for group in alike:
        alone = _alone(pipeline, group[0])
        unlike = {tuple(lane // like for lane in each): each for each in group}  # of like lanes the order alone counts
        for orders in {_orders(schedule, pipeline, each) for each in unlike.values()}:
            longest = max(longest, makespan(replace(schedule, orders=orders), alone))
    return longest


def longest_of_lanes(write: Callable[[int, int], Schedule], pipeline: Pipeline, micro_batches: int) -> int:
    """Return the makespan in nanoseconds of lists that ``write(replicas, micro_batches)`` gives each island.

    All stages have as many replicas, and a rank is the same replica of all its stages.
    """
    replicas, longest = len(pipeline.placement[0]), 0
    for remainders, *_ in _alike(pipeline, micro_batches):
        own = write(len(remainders), len(_of(remainders, replicas, micro_batches)))
        longest = max(longest, makespan(own, _alone(pipeline, remainders)))
    return longest


def _in_lanes(pipeline: Pipeline) -> bool:
    """Return whether no rank belongs to several lanes."""
    lane: dict[int, int] = {}
    divisor = gcd(*pipeline.replicas)
    return all(
        lane.setdefault(rank, j % divisor) == j % divisor for own in pipeline.placement for j, rank in enumerate(own)
    )


def _alone(pipeline: Pipeline, remainders: list[int]) -> Pipeline:
    """Return the lanes with these remainders as a pipeline, its ranks counted from 0."""
    part = _island(pipeline, None, remainders)
    homes = sorted({*chain.from_iterable(part.placement)})
    place = {rank: number for number, rank in enumerate(homes)}
    return replace(
        part,
        placement=tuple(tuple(place[rank] for rank in own) for own in part.placement),
        runtime=tuple(pipeline.runtime[rank] for rank in homes),
        limits=tuple(pipeline.limits[rank] for rank in homes),
    )


def _orders(schedule: Schedule, pipeline: Pipeline, remainders: list[int]) -> tuple[tuple[Action, ...], ...]:
    """Return the lists of an island's ranks, its micro-batches counted from 0."""
    divisor = gcd(*pipeline.replicas)
    number = {m: i for i, m in enumerate(_of(remainders, divisor, schedule.micro_batches))}
    ranks = sorted({own[j] for own in pipeline.placement for j in _of(remainders, divisor, len(own))})
    orders = []
    for rank in ranks:
        kinds, stages, places, parts = zip(*schedule.orders[rank], strict=True)
        numbers = [number[m] if kind.per_micro_batch else m for kind, m in zip(kinds, places, strict=True)]
        orders.append(tuple(map(Action, kinds, stages, numbers, parts)))
    return tuple(orders)


def _island(pipeline: Pipeline, micro_batches: int | None, remainders: list[int]) -> Pipeline:
    """Return the lanes with these remainders as a pipeline, without pairs of replicas that no micro-batch meets.

    Without a number of micro-batches all pairs are there.
    """
    divisor = gcd(*pipeline.replicas)
    if micro_batches is not None and len(remainders) == min(divisor, micro_batches):
        return pipeline
    met = UNLIMITED if micro_batches is None else -(-micro_batches // divisor) * divisor
    onward, back = (
        tuple(tuple(row[m] for m in _of(remainders, divisor, min(len(row), met))) for row in rows)
        for rows in (pipeline.transfers, pipeline.returns)
    )
    placement = tuple(tuple(own[j] for j in _of(remainders, divisor, len(own))) for own in pipeline.placement)
    return replace(pipeline, placement=placement, transfers=onward, returns=back)


def _alike(pipeline: Pipeline, micro_batches: int) -> list[list[list[int]]]:
    """Return the remainders of each island, those of islands that are alike together."""
    apart, divisor = _apart(pipeline, micro_batches), gcd(*pipeline.replicas)
    if len(apart) == 1:
        return [apart]
    forms: dict[object, list[list[int]]] = {}
    for remainders in apart:
        part, many = _island(pipeline, micro_batches, remainders), len(_of(remainders, divisor, micro_batches))
        order = np.argsort(np.concatenate(part.placement), kind="stable").tobytes()  # ties go to the lower device
        forms.setdefault((many, order, _numbered([*part.transfers, *part.returns])), []).append(remainders)
    return list(forms.values())


def _of(remainders: Collection[int], divisor: int, most: int) -> list[int]:
    """Return the numbers below ``most`` with these remainders, ascending."""
    return [first + j for first in range(0, most, divisor) for j in remainders if first + j < most]


def _apart(pipeline: Pipeline, micro_batches: int) -> list[list[int]]:
    """Return the remainders of each island, ascending."""
    divisor = gcd(*pipeline.replicas)
    lanes_met = min(divisor, micro_batches)
    leader = list(range(lanes_met))

    def find(lane: int) -> int:
        while leader[lane] != lane:
            leader[lane] = lane = leader[leader[lane]]
        return lane

    first: dict[str, int] = {}
    for row in (*pipeline.transfers, *pipeline.returns):
        for m, transfer in enumerate(row):
            lane = m % divisor
            if lane < lanes_met:
                for name in transfer.resources:
                    one, other = find(first.setdefault(name, lane)), find(lane)
                    leader[max(one, other)] = min(one, other)
    found: dict[int, list[int]] = {}
    for lane in range(lanes_met):
        found.setdefault(find(lane), []).append(lane)
    return list(found.values())


def _numbered(rows: list[tuple[Transfer, ...]]) -> tuple[tuple[int, ...], ...]:
    """Return the times of all transfers, and their resources by the order in which they appear."""
    numbers: dict[str, int] = {}
    return tuple(
        (each.occupancy, each.latency, *(numbers.setdefault(name, len(numbers)) for name in each.resources))
        for each in chain.from_iterable(rows)
    )
