"""Lanes: parts of a pipeline that never meet as long as every pair of replicas has a link of its own.

Let g divide all numbers of replicas. Replica j of a stage runs the micro-batches m with m ≡ j modulo its number of
replicas, so m ≡ j modulo g too, and exchanges tensors with replicas of the same remainder only. So each remainder is a
pipeline by itself::

    stage 0     0  1  2  3          remainder 0    replicas 0, 2 │ 0        micro-batches 0, 2, 4 …
    stage 1     0  1                remainder 1    replicas 1, 3 │ 1        micro-batches 1, 3, 5 …

Lanes with the same transfers differ in their last micro-batch at most. Without it nothing ends later, because each time
is a maximum of sums over fewer actions. So of such lanes only the first one is run.

Pairs of replicas that no micro-batch of the step meets are left out: neighbours with coprime numbers of replicas have
many more pairs than a step has micro-batches.

*Islands* are lanes that share no resource with others, such as those on some nodes whose stages have as many replicas
in each node. Micro-batches and replicas of an island keep their order, so it runs as if it were alone. Thousands of
replicas are often on one kind of island, of which one is run.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import chain
from math import gcd

import numpy as np

from pipeplan.core.pipeline import Pipeline, Transfer


def alike(pipeline: Pipeline, micro_batches: int) -> bool:
    """Return True if every lane has one replica of each stage, and all lanes have the same times."""
    if len(set(pipeline.replicas)) > 1:
        return False
    return sum(1 for _ in lanes(pipeline, micro_batches)) == 1


def lanes(pipeline: Pipeline, micro_batches: int) -> Iterator[tuple[Pipeline, int]]:
    """Yield the lanes that differ, with their numbers of micro-batches."""
    divisor, seen = gcd(*pipeline.replicas), set()
    for first in range(min(divisor, micro_batches)):
        own, met = slice(first, None, divisor), slice(first, -(-micro_batches // divisor) * divisor, divisor)
        onward, back = (tuple(row[met] for row in rows) for rows in (pipeline.transfers, pipeline.returns))
        times = tuple((each.occupancy, each.latency, bool(each.resources)) for row in (*onward, *back) for each in row)
        if times not in seen:
            seen.add(times)
            placement = tuple(devices[own] for devices in pipeline.placement)
            lane = replace(pipeline, placement=placement, transfers=onward, returns=back)
            yield lane, len(range(first, micro_batches, divisor))


def islands(pipeline: Pipeline, micro_batches: int) -> Iterator[tuple[Pipeline, int]]:
    """Yield the islands that differ, with their numbers of micro-batches; of a single one the pipeline itself."""
    divisor, seen = gcd(*pipeline.replicas), set()
    apart = _apart(pipeline, min(divisor, micro_batches), divisor)
    if len(apart) == 1:
        yield pipeline, micro_batches
        return
    for remainders in apart:
        met = -(-micro_batches // divisor) * divisor
        onward, back = (
            tuple(tuple(row[m] for m in _of(remainders, divisor, min(len(row), met))) for row in rows)
            for rows in (pipeline.transfers, pipeline.returns)
        )
        placement = tuple(tuple(own[j] for j in _of(remainders, divisor, len(own))) for own in pipeline.placement)
        many = sum(len(range(j, micro_batches, divisor)) for j in remainders)
        order = np.argsort(np.concatenate(placement)).tobytes()  # ties go to the lower device
        form = many, order, _numbered([*onward, *back])
        if form not in seen:
            seen.add(form)
            yield replace(pipeline, placement=placement, transfers=onward, returns=back), many


def _of(remainders: Collection[int], divisor: int, most: int) -> list[int]:
    """Return the numbers below ``most`` with these remainders, ascending."""
    return [first + j for first in range(0, most, divisor) for j in remainders]


def _apart(pipeline: Pipeline, lanes_met: int, divisor: int) -> list[list[int]]:
    """Return the remainders of each island, ascending."""
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
