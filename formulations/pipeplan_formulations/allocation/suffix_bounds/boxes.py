r"""Boxes of allocations by largest delay e and largest backward, each with a lower bound, and rules to split them.

A box holds the allocations whose largest delay e lies in (a, b]. It may also limit the largest backward of all
stages (`LargestBackward`). With b as the ceiling of its programme, T ≥ V*(b) and T ≥ A*(b) + a.

::

    q   │        │          a box is split along: e      V* or A* + a rises in at least one half
        │────────┤                                q      both of two stages: a tighter range of the largest backward
        │        │                                v      alternation: a tighter range of its stage's width
        └────────┴──── e
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.largest_backward import (
    LargestBackward,
    largest_backward_between,
    rounds,
)

STRETCH = 5
"""Boxes are split along e, which raises bounds sooner, until they are this many times longer along q."""

LEAST_PART = 8
"""The upper part of a split along e is at least an eighth of the box."""

NARROW, NARROWER = 64, 256
"""A box is narrow if its range of e is at most 1 / `NARROW` of its bound, with a limit on the largest backward, which
takes longer, 1 / `NARROWER`; then ranges of excess are distinguished."""

Corner = Callable[[int, int, LargestBackward | None], tuple[int, int, bool]]
"""V* and A* for a ceiling on e, a least value of the largest e, and a range of the largest backward.

They are `IMPOSSIBLE` beyond the horizon. The third value is true if they might be larger with ranges of excess
distinguished, which takes long.
"""


@dataclass(frozen=True)
class Box:
    """A set of allocations, limited by their largest e and their largest backward.

    Attributes
    ----------
    bound : int
        Lower bound on T of all of them.
    low, high : int
        The largest e is above ``low``, and ``high`` at most.
    value, trip : int
        V* and A*.
    largest : LargestBackward or None
        Range of the largest backward; None if it is not limited.
    coarse : bool
        True if all ranges of excess were treated as one, although they might matter. Narrow boxes distinguish them.
    """

    bound: int
    low: int
    high: int
    value: int
    trip: int
    largest: LargestBackward | None = None
    coarse: bool = False

    def __lt__(self, other: "Box") -> bool:
        """Compare by bound, for a heap."""
        return self.bound < other.bound

    @property
    def sides(self) -> tuple[int, int, int]:
        """Lengths of the ranges of e, of the largest backward and of its stage's width, all in units of e."""
        if self.largest is None:
            return self.high - self.low, 0, 0
        tall = self.largest.rounds * (self.largest.most - self.largest.least)
        return (
            self.high - self.low,
            tall,
            (self.largest.widths[-1] - self.largest.widths[0]) * self.largest.most,
        )

    def with_largest(self, problem: ChainAllocation) -> "Box":
        """The same box with the full range of the largest backward as its limit."""
        return replace(
            self,
            largest=largest_backward_between(problem, 0, _largest(problem, self.high, problem.widths), problem.widths),
        )

    def with_ceiling(self, high: int, corner: Corner) -> "Box":
        """The part of the box with e at most ``high``."""
        return self._part(corner, self.low, high, self.largest)

    def split(self, problem: ChainAllocation, corner: Corner, known: int) -> list["Box"]:
        """Split the box into parts that cover it; ``known`` is a lower bound on all T."""
        if self.coarse and is_narrow(self.low, self.high, self.bound, self.largest):
            return [self.with_ceiling(self.high, corner)]
        wide, tall, broad = self.sides
        if self.largest is not None and broad > max(wide, tall // STRETCH):
            return self._by_width(problem, corner, self.largest)
        if self.largest is not None and (tall > STRETCH * wide or tall > 1 >= wide):
            return self._by_backward(problem, corner, self.largest)
        return self._by_delay(problem, corner, known)

    def _by_delay(self, problem: ChainAllocation, corner: Corner, known: int) -> list["Box"]:
        """Split along e."""
        # The upper part raises the bound only once A* + a reaches V* and ``known``, so split there, not in the middle.
        at = max(self.value, known) - self.trip
        most = self.high - (self.high - self.low) // LEAST_PART
        middle = at if self.low < at < most else (self.low + self.high) // 2
        upper = replace(self, bound=max(self.bound, self.trip + middle), low=middle)  # the same programme
        if self.largest is None:
            return [upper, self.with_ceiling(middle, corner)]
        least, widths = self.largest.least, self.largest.widths
        most = min(self.largest.most, _largest(problem, middle, widths))
        if least > most:
            return [upper]
        return [upper, self._part(corner, self.low, middle, largest_backward_between(problem, least, most, widths))]

    def _by_backward(self, problem: ChainAllocation, corner: Corner, largest: LargestBackward) -> list["Box"]:
        """Split the range of the largest backward in halves."""
        middle = (largest.least + largest.most) // 2
        lower, upper = (
            largest_backward_between(problem, least, most, largest.widths)
            for least, most in ((largest.least, middle), (middle + 1, largest.most))
        )
        parts = [self._part(corner, self.low, self.high, lower)]
        low = max(self.low, largest.rounds * upper.least)  # that stage alone has such an e
        return [*parts, self._part(corner, low, self.high, upper)] if low <= self.high else parts

    def _by_width(self, problem: ChainAllocation, corner: Corner, largest: LargestBackward) -> list["Box"]:
        """Split the widths that the stage with the largest backward may have in halves."""
        half = len(largest.widths) // 2
        parts = []
        for widths in (largest.widths[:half], largest.widths[half:]):
            most = min(largest.most, _largest(problem, self.high, widths))
            if largest.least <= most:
                parts.append(
                    self._part(
                        corner,
                        self.low,
                        self.high,
                        largest_backward_between(problem, largest.least, most, widths),
                    )
                )
        return parts

    def _part(self, corner: Corner, low: int, high: int, largest: LargestBackward | None) -> "Box":
        """The box of these limits, evaluated."""
        value, trip, coarse = corner(high, low, largest)
        return Box(max(self.bound, value, trip + low), low, high, value, trip, largest, coarse)


def is_narrow(low: int, high: int, bound: int, largest: LargestBackward | None) -> bool:
    """True if the range of e from ``low`` to ``high`` is a small part of the bound."""
    return high - low <= max(1, bound // (NARROW if largest is None else NARROWER))


def _largest(problem: ChainAllocation, high: int, widths: tuple[int, ...]) -> int:
    """The largest backward per unit of a stage of one of these widths whose e is at most ``high``."""
    least = rounds(problem, widths)
    if least:
        return high // least
    again = np.where(problem.recomputable, problem.forward, 0)
    return int((problem.backward + again).max(axis=0).sum()) // widths[0]
