"""How many micro-batches a 1F1B stage may have in flight: SNO's count, SO's, and what lies between."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from math import prod

from pipeplan.cluster import Overlap
from pipeplan.schedule import Schedule
from pipeplan.schedules import FAMILIES, Family
from pipeplan.schedules.alternate import one_forward_one_backward
from pipeplan_formulations.allocation.falling import falls

FREE = "1f1b"
"""The family whose in-flight counts are chosen."""

FEW = 8
"""Up to so many choices between SNO and SO are looked at one by one."""


def free_family(in_flight: tuple[int, ...]) -> Family:
    """1F1B with these counts, one a stage."""
    return Family(
        FREE,
        partial(_write, in_flight=in_flight),
        partial(_counts, in_flight=in_flight),
        frozenset({Overlap.NONE, Overlap.COPY}),
        f"one forward, one backward; {'-'.join(map(str, in_flight))} micro-batches in flight",
    )


def between(replicas: Sequence[int], micro_batches: int) -> list[Family] | None:
    """Every 1F1B family whose counts fall along the pipeline, none below SNO's or above SO's; None if there are many.

    More than `FEW` choices are many. What it means to fall is told in `pipeplan_formulations.allocation.falling`.
    """
    least = FAMILIES["1f1b-sno"].in_flight(replicas, micro_batches)
    most = FAMILIES["1f1b-so"].in_flight(replicas, micro_batches)
    spans = [range(a, max(a, b) + 1) for a, b in zip(least, most, strict=True)]
    if prod(map(len, spans)) > FEW:
        return None
    shares = [-(-micro_batches // r) for r in replicas]
    return [free_family(counts) for counts in product(*spans) if falls(replicas, shares, least, counts)]


def _write(replicas: Sequence[int], micro_batches: int, *, in_flight: tuple[int, ...]) -> Schedule:
    return one_forward_one_backward(replicas, micro_batches, in_flight)


def _counts(replicas: Sequence[int], micro_batches: int, *, in_flight: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(min(k, -(-micro_batches // r)) for k, r in zip(in_flight, replicas, strict=True))
