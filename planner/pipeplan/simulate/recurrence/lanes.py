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
"""

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from pipeplan.core.pipeline import Pipeline


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
