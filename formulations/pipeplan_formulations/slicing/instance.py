"""Problem: where to cut a sequence of units, if each slice takes a time of its own.

A unit is a number of tokens, which are not cut. Slices go through K equal stages one behind the other, and D sequences
follow each other, all cut alike. With times t of the slices that takes

    T = D · Σ t + (K − 1) · max t

(TeraPipe, arXiv 2102.07988, equation 5, there for D = 1): the last stage works on all slices, behind K − 1 stages'
work, at each of which a longest slice may stand in the way.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.report import BeyondIntegersError
from pipeplan_formulations.common.sentinels import UNLIMITED

Cuts = tuple[int, ...]
"""Units where slices begin, and the end: 0, …, N."""


@dataclass(frozen=True, eq=False)
class Slicing:
    """Times of all slices, and how often and over how many stages they run.

    Attributes
    ----------
    times : array of int, shape (N + 1, N + 1)
        ``times[e, j]``, j < e: time of the slice of units j to e − 1, which reads all units before it. The rest is not
        looked at. `UNLIMITED` for a slice that may not be.
    stages : int
        K, at least 1.
    sequences : int
        D, at least 1.

    Raises
    ------
    ValueError
        If there is no unit, a time is negative, or a number is below 1.
    BeyondIntegersError
        If the time of some slicing may exceed 64-bit integers.
    """

    times: NDArray[np.int64]
    stages: int
    sequences: int = 1

    def __post_init__(self) -> None:
        n = self.units
        if self.times.shape != (n + 1, n + 1) or n < 1:
            raise ValueError(f"times of slices have shape (N + 1, N + 1) with N of at least 1, not {self.times.shape}")
        if self.stages < 1 or self.sequences < 1:
            raise ValueError(f"{self.stages} stages and {self.sequences} sequences: both are at least 1")
        slices = self.slice_times
        if slices.min() < 0:
            raise ValueError(f"a slice takes {slices.min()}; times are not negative")
        if int(slices[slices < UNLIMITED].max(initial=0)) * (self.sequences * n + self.stages) >= UNLIMITED:
            raise BeyondIntegersError("the times of slices are so large that their sums exceed 64-bit integers")

    @property
    def units(self) -> int:
        """N."""
        return len(self.times) - 1

    @property
    def slice_times(self) -> NDArray[np.int64]:
        """The times of all slices in one row, shape (N (N + 1) / 2,)."""
        return self.times[np.tril_indices(len(self.times), -1)]

    def of(self, cuts: Cuts) -> list[int]:
        """Return the times of slices."""
        return [int(self.times[end, start]) for start, end in pairwise(cuts)]

    def value(self, total: int, largest: int) -> int:
        """Return T for slices of this time in all, of which the longest takes ``largest``."""
        return self.sequences * total + (self.stages - 1) * largest

    def evaluate(self, cuts: Cuts) -> int:
        """Return T."""
        times = self.of(cuts)
        return self.value(sum(times), max(times))
