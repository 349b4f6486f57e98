"""How many micro-batches a 1F1B stage may have in flight: SNO's count, SO's, and what lies between."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from math import prod

from pipeplan.cluster import Overlap
from pipeplan.schedule import Schedule
from pipeplan.schedules import FAMILIES, Family
from pipeplan.schedules.alternate import first_deadlock, one_forward_one_backward

FREE = "1f1b"
"""The family whose in-flight counts are chosen."""

FEW = 8
"""Up to so many choices between SNO and SO are all considered; of more, those on the straight way between the two."""


def free_family(in_flight: tuple[int, ...]) -> Family:
    """1F1B with these counts, one a stage."""
    return Family(
        FREE,
        partial(_write, in_flight=in_flight),
        partial(_counts, in_flight=in_flight),
        frozenset({Overlap.NONE, Overlap.COPY}),
        f"one forward, one backward; {'-'.join(map(str, in_flight))} micro-batches in flight",
    )


def between(replicas: Sequence[int], micro_batches: int) -> Iterator[Family]:
    """1F1B families that hold no fewer micro-batches than SNO and no more than SO, these two included.

    Every choice where there are at most `FEW`; otherwise SNO's counts and j more, at most SO's, for j = 1, 2, 4, …
    """
    least = FAMILIES["1f1b-sno"].in_flight(replicas, micro_batches)
    most = FAMILIES["1f1b-so"].in_flight(replicas, micro_batches)
    spans = [range(a, max(a, b) + 1) for a, b in zip(least, most, strict=True)]
    choices: list[tuple[int, ...]]
    if prod(map(len, spans)) <= FEW:
        choices = list(product(*spans))
    else:
        steps = [2**i for i in range(max(map(len, spans)).bit_length())]
        choices = [least, *(tuple(span[min(step, len(span) - 1)] for span in spans) for step in steps), most]
    for choice in dict.fromkeys(choices):
        if first_deadlock(replicas, choice) is None:
            yield free_family(choice)


def _write(replicas: Sequence[int], micro_batches: int, *, in_flight: tuple[int, ...]) -> Schedule:
    return one_forward_one_backward(replicas, micro_batches, in_flight)


def _counts(replicas: Sequence[int], micro_batches: int, *, in_flight: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(min(k, -(-micro_batches // r)) for k, r in zip(in_flight, replicas, strict=True))
