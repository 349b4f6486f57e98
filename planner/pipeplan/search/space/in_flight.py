"""In-flight counts of 1F1B: those that the search allows, and boxes of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, product
from math import prod

from pipeplan.core.cluster import Overlap
from pipeplan.core.schedule import Schedule
from pipeplan.schedules import FAMILIES, Family
from pipeplan.schedules.alternate import one_forward_one_backward
from pipeplan.schedules.family import devices_from, per_replica
from pipeplan.search.regimes import REGIMES
from pipeplan_formulations.allocation.non_increasing import is_non_increasing
from pipeplan_formulations.common.sentinels import UNLIMITED

FREE = "1f1b"
"""The family whose in-flight counts are chosen."""

FEW = REGIMES.listed_counts.most
"""Most choices of counts that are enumerated."""


def free_family(in_flight: tuple[int, ...]) -> Family:
    """1F1B with these in-flight counts, one per stage."""
    return Family(
        FREE,
        partial(_write, in_flight=in_flight),
        partial(held_at_most, in_flight=in_flight),
        frozenset({Overlap.NONE, Overlap.COPY}),
        f"one forward, one backward; {'-'.join(map(str, in_flight))} micro-batches in flight",
    )


@dataclass(frozen=True)
class InFlightBox:
    """Non-increasing in-flight counts along the pipeline, each between ``low`` and ``high``.

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
        """The box of all counts that the search allows, from SNO's ⌈R_s / r_s⌉ to ⌈(3 R_s − 2 r_s) / r_s⌉.

        Without replicas the most is 3(N − i) + 1 at stage i of N: it hides transfers that take as long as a stage's
        forward and backward. SO's 2(N − i) + 1 hide those of half that time.
        """
        least = FAMILIES["1f1b-sno"].in_flight(replicas, micro_batches)
        wanted = [3 * total - 2 * r for total, r in zip(devices_from(replicas), replicas, strict=True)]
        return InFlightBox(tuple(replicas), micro_batches, least, least, per_replica(wanted, replicas, micro_batches))

    @staticmethod
    def up_to_so(replicas: Sequence[int], micro_batches: int) -> "InFlightBox":
        """The box of the counts from SNO's to SO's."""
        whole = InFlightBox.of(replicas, micro_batches)
        return replace(whole, high=FAMILIES["1f1b-so"].in_flight(replicas, micro_batches))

    @property
    def size(self) -> int:
        """Number of count vectors in the box, including those that are not non-increasing."""
        return prod(b - a + 1 for a, b in zip(self.low, self.high, strict=True))

    @property
    def few(self) -> bool:
        """Return True if the counts are enumerated."""
        return self.size <= FEW

    @property
    def shares(self) -> tuple[int, ...]:
        """Micro-batches per replica of each stage."""
        return tuple(-(-self.micro_batches // r) for r in self.replicas)

    def __contains__(self, counts: tuple[int, ...]) -> bool:
        inside = all(a <= k <= b for a, k, b in zip(self.low, counts, self.high, strict=True))
        return inside and is_non_increasing(self.replicas, self.shares, self.least, counts)

    def counts(self) -> Iterator[tuple[int, ...]]:
        """Every non-increasing count vector of the box."""
        spans = (range(a, b + 1) for a, b in zip(self.low, self.high, strict=True))
        return (
            counts for counts in product(*spans) if is_non_increasing(self.replicas, self.shares, self.least, counts)
        )

    def fill_memory(self, most_in_flight: Sequence[int]) -> tuple[int, ...]:
        """Return for each stage as many micro-batches in flight as fit in memory, at least the box's least.

        ::

            stage               0    1    2    3
            fewest (SNO)        4    3    2    1      keep all devices busy if transfers take no time
            most (SO)           7    5    3    1      hide transfers behind computation
            fit in memory       9    3    5    8      ``most_in_flight``
            chosen              7    3    2    1      non-increasing along the pipeline, as all counts of the search
        """
        counts: list[int] = []
        allowed = UNLIMITED  # excess that the stages before leave
        for s, (low, high, fitting) in enumerate(zip(self.low, self.high, most_in_flight, strict=True)):
            width, units = self.replicas[s], sum(self.replicas[s:])
            count = max(low, min(high, fitting, (units + allowed) // width))
            counts.append(count)
            if count < self.shares[s]:
                allowed = min(allowed, count * width - units)
        return tuple(counts)

    def moved(self, counts: Sequence[int], stage: int, by: int) -> tuple[int, ...]:
        """Return counts with ``by`` more on a stage, and others that follow it, so that they stay non-increasing.

        ::

            stage                  0    1    2    3    4
            counts                 7    6    3    2    1
            two more on stage 3    7    6    5    4    1      no stage before it has less excess
            one less on stage 0    6    5    3    2    1      none behind it has more
        """
        units = list(accumulate(reversed(self.replicas)))[::-1]
        excess = (counts[stage] + by) * self.replicas[stage] - units[stage]
        found = list(counts)
        found[stage] += by
        for s, (width, total) in enumerate(zip(self.replicas, units, strict=True)):
            if by > 0 and s < stage:
                found[s] = max(found[s], min(-(-(total + excess) // width), self.high[s]))
            elif by < 0 and s > stage:
                found[s] = min(found[s], max((total + excess) // width, self.low[s]))
        return tuple(found)

    def split(self, stage: int, count: int) -> list["InFlightBox"]:
        """Split into counts of at most ``count`` on the stage and counts above; empty boxes are left out."""
        below = replace(self, high=_put(self.high, stage, count))
        above = replace(self, low=_put(self.low, stage, count + 1))
        return [box for part in (below, above) if (box := part.tight()) is not None]

    def halves(self) -> list["InFlightBox"]:
        """Split the box in the middle of its widest range."""
        stage = max(range(len(self.low)), key=lambda s: self.high[s] - self.low[s])
        return self.split(stage, (self.low[stage] + self.high[stage]) // 2)

    def tight(self) -> "InFlightBox | None":
        """Shrink the box to the ends that some non-increasing counts reach; None if it is empty.

        The excess of a stage is its count times its replicas, less the devices from this stage on. No stage has more
        excess than the stages before it may have, unless SNO holds as many. No stage has less than the least excess of
        a stage behind it that holds more than SNO, unless it holds all of its micro-batches.
        """
        units = list(accumulate(reversed(self.replicas)))[::-1]
        rows = list(zip(self.replicas, units, self.shares, self.least, self.low, self.high, strict=True))
        high: list[int] = []
        allowed = UNLIMITED  # excess that the stages before leave
        for width, total, share, least, _, most in rows:
            high.append(min(most, max(least, (total + allowed) // width)))
            if high[-1] < share:
                allowed = min(allowed, high[-1] * width - total)
        low: list[int] = []
        needed = -UNLIMITED  # excess that the stages behind have at least
        for width, total, share, least, fewest, _ in reversed(rows):
            low.insert(0, max(fewest, min(share, -(-(total + needed) // width))))
            if low[0] > least:
                needed = max(needed, low[0] * width - total)
        fits = all(a <= b for a, b in zip(low, high, strict=True))
        return replace(self, low=tuple(low), high=tuple(high)) if fits else None


def between(replicas: Sequence[int], micro_batches: int) -> list[Family] | None:
    """Return the 1F1B families with the counts that the search allows; None if there may be more than `FEW`.

    `allocation.non_increasing` defines non-increasing counts for stages with unequal numbers of replicas.
    """
    box = InFlightBox.of(replicas, micro_batches)
    return [free_family(counts) for counts in box.counts()] if box.few else None


def _put(counts: tuple[int, ...], stage: int, count: int) -> tuple[int, ...]:
    return (*counts[:stage], count, *counts[stage + 1 :])


def _write(replicas: Sequence[int], micro_batches: int, *, in_flight: tuple[int, ...]) -> Schedule:
    return one_forward_one_backward(replicas, micro_batches, in_flight)


def held_at_most(replicas: Sequence[int], micro_batches: int, *, in_flight: tuple[int, ...]) -> tuple[int, ...]:
    """In-flight counts per replica of each stage: at most the micro-batches of the replica."""
    return tuple(min(k, -(-micro_batches // r)) for k, r in zip(in_flight, replicas, strict=True))
