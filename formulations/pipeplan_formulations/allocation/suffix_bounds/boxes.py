r"""Boxes over what the dynamic programme cannot see, and how they are cut.

A box holds the allocations whose largest e of (4) to (6) lies in (a, b], and whose largest backward is in its peak
(see `peak`), if one is looked at. With b as the ceiling of its programme, T ≥ V*(b) and T ≥ A*(b) + a.

::

    q   │        │          what a box is cut along: e      V* or A* + a rises in one half at least
        │────────┤                                   q      (5) and (6) are told more of the largest backward
        │        │                                   v      (5) is told how many of its micro-batches share a replica
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

FLAT = 5
"""Boxes are cut along e, which raises bounds sooner, until they are so many times longer along the largest backward."""

SLIVER = 8
"""No box is cut so that its upper part is less than an eighth of it."""

SLIM = 256
"""A box whose e leave open no more than such a part of what is known is cut no further without ranges of excess."""

Corner = Callable[[int, int, LargestBackward | None], tuple[int, int, bool]]
"""V* and A*: below a ceiling on e, with a floor under the largest e, with a peak; `IMPOSSIBLE` beyond the horizon.

Third, whether they might be larger if ranges of excess were told apart, which takes long.
"""


@dataclass(frozen=True)
class Box:
    """Some allocations, by their largest e and their largest backward.

    Attributes
    ----------
    bound : int
        None of them has a smaller T.
    low, high : int
        The largest e is above ``low``, and ``high`` at most.
    value, alone : int
        V* and A*.
    peak : LargestBackward or None
        None if it is not looked at.
    rough : bool
        Whether ranges of excess were taken for one, though they might matter. They are told apart in slim boxes.
    """

    bound: int
    low: int
    high: int
    value: int
    alone: int
    peak: LargestBackward | None = None
    rough: bool = False

    def __lt__(self, other: "Box") -> bool:
        """Whether it has the lower bound."""
        return self.bound < other.bound

    @property
    def sides(self) -> tuple[int, int, int]:
        """How much the ranges of e, of the largest backward and of its stage's width leave open, in units of e."""
        if self.peak is None:
            return self.high - self.low, 0, 0
        tall = self.peak.rounds * (self.peak.most - self.peak.least)
        return self.high - self.low, tall, (self.peak.widths[-1] - self.peak.widths[0]) * self.peak.most

    def peaked(self, problem: ChainAllocation) -> "Box":
        """The same box, all peaks of it in one."""
        return replace(
            self,
            peak=largest_backward_between(problem, 0, _largest(problem, self.high, problem.widths), problem.widths),
        )

    def below(self, high: int, corner: Corner) -> "Box":
        """Its part with a lower ceiling."""
        return self._part(corner, self.low, high, self.peak)

    def cut(self, problem: ChainAllocation, corner: Corner, known: int) -> list["Box"]:
        """Parts that hold all that it holds, where no T is below ``known``."""
        if self.rough and slim(self.low, self.high, self.bound):
            return [self.below(self.high, corner)]
        wide, tall, broad = self.sides
        if self.peak is not None and broad > max(wide, tall // FLAT):
            return self._by_width(problem, corner, self.peak)
        if self.peak is not None and (tall > FLAT * wide or tall > 1 >= wide):
            return self._by_backward(problem, corner, self.peak)
        return self._by_service(problem, corner, known)

    def _by_service(self, problem: ChainAllocation, corner: Corner, known: int) -> list["Box"]:
        # No box raises the bound before A* + a reaches V*, or what is known already: better cut there than halve.
        at = max(self.value, known) - self.alone
        most = self.high - (self.high - self.low) // SLIVER
        middle = at if self.low < at < most else (self.low + self.high) // 2
        upper = replace(self, bound=max(self.bound, self.alone + middle), low=middle)  # the same programme
        if self.peak is None:
            return [upper, self.below(middle, corner)]
        least, widths = self.peak.least, self.peak.widths
        most = min(self.peak.most, _largest(problem, middle, widths))
        if least > most:
            return [upper]
        return [upper, self._part(corner, self.low, middle, largest_backward_between(problem, least, most, widths))]

    def _by_backward(self, problem: ChainAllocation, corner: Corner, peak: LargestBackward) -> list["Box"]:
        middle = (peak.least + peak.most) // 2
        lower, upper = (
            largest_backward_between(problem, least, most, peak.widths)
            for least, most in ((peak.least, middle), (middle + 1, peak.most))
        )
        parts = [self._part(corner, self.low, self.high, lower)]
        low = max(self.low, peak.rounds * upper.least)  # that stage alone has such an e
        return [*parts, self._part(corner, low, self.high, upper)] if low <= self.high else parts

    def _by_width(self, problem: ChainAllocation, corner: Corner, peak: LargestBackward) -> list["Box"]:
        half = len(peak.widths) // 2
        parts = []
        for widths in (peak.widths[:half], peak.widths[half:]):
            most = min(peak.most, _largest(problem, self.high, widths))
            if peak.least <= most:
                parts.append(
                    self._part(corner, self.low, self.high, largest_backward_between(problem, peak.least, most, widths))
                )
        return parts

    def _part(self, corner: Corner, low: int, high: int, peak: LargestBackward | None) -> "Box":
        value, alone, rough = corner(high, low, peak)
        return Box(max(self.bound, value, alone + low), low, high, value, alone, peak, rough)


def slim(low: int, high: int, bound: int) -> bool:
    """Whether e in a box from ``low`` to ``high`` leaves little open."""
    return high - low <= max(1, bound // SLIM)


def _largest(problem: ChainAllocation, high: int, widths: tuple[int, ...]) -> int:
    """The largest backward for each unit of a stage of such a width whose e is at most ``high``."""
    least = rounds(problem, widths)
    if least:
        return high // least
    again = np.where(problem.recomputable, problem.forward, 0)
    return int((problem.backward + again).max(axis=0).sum()) // widths[0]
