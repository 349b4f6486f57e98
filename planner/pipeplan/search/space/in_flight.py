"""In-flight counts of 1F1B: SNO's, SO's, and boxes of counts between them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, product
from math import prod

from pipeplan.core.cluster import Overlap
from pipeplan.core.schedule import Schedule
from pipeplan.schedules import FAMILIES, Family
from pipeplan.schedules.alternate import one_forward_one_backward
from pipeplan_formulations.allocation.non_increasing import is_non_increasing
from pipeplan_formulations.common.sentinels import UNLIMITED

FREE = "1f1b"
"""The family whose in-flight counts are chosen."""

FEW = 8
"""Up to so many choices between SNO and SO are looked at one by one."""


def free_family(in_flight: tuple[int, ...]) -> Family:
    """1F1B with these counts, one a stage."""
    return Family(
        FREE,
        partial(_write, in_flight=in_flight),
        partial(held_at_most, in_flight=in_flight),
        frozenset({Overlap.NONE, Overlap.COPY}),
        f"one forward, one backward; {'-'.join(map(str, in_flight))} micro-batches in flight",
    )


@dataclass(frozen=True)
class InFlightBox:
    """In-flight counts that fall along the pipeline, each between ``low`` and ``high``.

    Attributes
    ----------
    replicas : tuple of int
    micro_batches : int
    least : tuple of int
        SNO's counts.
    """

    replicas: tuple[int, ...]
    micro_batches: int
    least: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    @staticmethod
    def of(replicas: Sequence[int], micro_batches: int) -> "InFlightBox":
        """All that the search looks at: from SNO's counts to SO's."""
        least = FAMILIES["1f1b-sno"].in_flight(replicas, micro_batches)
        most = FAMILIES["1f1b-so"].in_flight(replicas, micro_batches)
        return InFlightBox(tuple(replicas), micro_batches, least, least, tuple(map(max, least, most)))

    @property
    def size(self) -> int:
        """Rows of counts in the box, those included that do not fall."""
        return prod(b - a + 1 for a, b in zip(self.low, self.high, strict=True))

    @property
    def few(self) -> bool:
        """Whether they are looked at one by one."""
        return self.size <= FEW

    @property
    def shares(self) -> tuple[int, ...]:
        """Micro-batches of a replica of each stage."""
        return tuple(-(-self.micro_batches // r) for r in self.replicas)

    def __contains__(self, counts: tuple[int, ...]) -> bool:
        inside = all(a <= k <= b for a, k, b in zip(self.low, counts, self.high, strict=True))
        return inside and is_non_increasing(self.replicas, self.shares, self.least, counts)

    def counts(self) -> Iterator[tuple[int, ...]]:
        """Every row of counts."""
        spans = (range(a, b + 1) for a, b in zip(self.low, self.high, strict=True))
        return (
            counts for counts in product(*spans) if is_non_increasing(self.replicas, self.shares, self.least, counts)
        )

    def filled(self, rooms: Sequence[int]) -> tuple[int, ...]:
        """For each stage as many micro-batches in flight as there is room for, at least the box's least.

        ::

            stage               0    1    2    3
            fewest (SNO)        4    3    2    1      keep all devices busy if tensors travel in no time
            most (SO)           7    5    3    1      hide tensors that travel while devices compute
            fit in memory       9    3    5    8      ``rooms``
            chosen              7    3    2    1      non-increasing along the pipeline, as all counts that are tried
        """
        counts: list[int] = []
        allowed = UNLIMITED  # excess that the stages before leave
        for s, (low, high, room) in enumerate(zip(self.low, self.high, rooms, strict=True)):
            width, units = self.replicas[s], sum(self.replicas[s:])
            count = max(low, min(high, room, (units + allowed) // width))
            counts.append(count)
            if count < self.shares[s]:
                allowed = min(allowed, count * width - units)
        return tuple(counts)

    def split(self, stage: int, count: int) -> list["InFlightBox"]:
        """Those with at most ``count`` on the stage, and those with more; empty ones are left out."""
        below = replace(self, high=_put(self.high, stage, count))
        above = replace(self, low=_put(self.low, stage, count + 1))
        return [box for part in (below, above) if (box := part.tight()) is not None]

    def halves(self) -> list["InFlightBox"]:
        """The box cut in the middle of its widest range."""
        stage = max(range(len(self.low)), key=lambda s: self.high[s] - self.low[s])
        return self.split(stage, (self.low[stage] + self.high[stage]) // 2)

    def tight(self) -> "InFlightBox | None":
        """The box without ends that no row has which falls; None if nothing is left.

        No stage has more excess than those before it may have, unless SNO holds as many; and none has less than one
        behind it has at least, if that holds more than SNO, unless it holds all of its micro-batches.
        """
        units = list(accumulate(reversed(self.replicas)))[::-1]
        rows = list(zip(self.replicas, units, self.shares, self.least, self.low, self.high, strict=True))
        high: list[int] = []
        allowed = UNLIMITED
        for width, total, share, least, _, most in rows:
            high.append(min(most, max(least, (total + allowed) // width)))
            if high[-1] < share:
                allowed = min(allowed, high[-1] * width - total)
        low: list[int] = []
        asked = -UNLIMITED
        for width, total, share, least, fewest, _ in reversed(rows):
            low.insert(0, max(fewest, min(share, -(-(total + asked) // width))))
            if low[0] > least:
                asked = max(asked, low[0] * width - total)
        fits = all(a <= b for a, b in zip(low, high, strict=True))
        return replace(self, low=tuple(low), high=tuple(high)) if fits else None


def between(replicas: Sequence[int], micro_batches: int) -> list[Family] | None:
    """Every 1F1B family whose counts fall along the pipeline, none below SNO's or above SO's; None if there are many.

    More than `FEW` choices are many. What it means to fall is told in `allocation.non_increasing`.
    """
    box = InFlightBox.of(replicas, micro_batches)
    return [free_family(counts) for counts in box.counts()] if box.few else None


def _put(counts: tuple[int, ...], stage: int, count: int) -> tuple[int, ...]:
    return (*counts[:stage], count, *counts[stage + 1 :])


def _write(replicas: Sequence[int], micro_batches: int, *, in_flight: tuple[int, ...]) -> Schedule:
    return one_forward_one_backward(replicas, micro_batches, in_flight)


def held_at_most(replicas: Sequence[int], micro_batches: int, *, in_flight: tuple[int, ...]) -> tuple[int, ...]:
    """In-flight counts of a replica of each stage, which never holds more than the micro-batches that it has."""
    return tuple(min(k, -(-micro_batches // r)) for k, r in zip(in_flight, replicas, strict=True))
