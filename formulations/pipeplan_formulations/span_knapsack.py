"""The fractional knapsack of any span of things: the least that it costs to save so much, many spans at once."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]

RANKS = 1024
"""Ranks of cost per saving that are told apart; the cheapest thing of a rank stands for all of it."""


class SpanKnapsack:
    """Sums of the cheapest ranks before each boundary; a search by halves tells how many ranks a span needs.

    ::

        rank      0  1  1  2  …        sums[g, i]   of the first g ranks among things 0 … i − 1
        thing     4  0  7  2  …        a span's sum of g ranks is sums[g, end] − sums[g, start]

    Parameters
    ----------
    cost, savings : array of int, shape (n,)
        Things that save nothing are never taken.
    """

    def __init__(self, cost: Array, savings: Array) -> None:
        useful = np.flatnonzero(savings > 0)
        ratio = cost[useful] / savings[useful]
        order = np.argsort(ratio, kind="stable")
        ranks = np.arange(len(order)) * min(RANKS, len(order)) // max(len(order), 1)
        count = int(ranks[-1]) + 1 if len(ranks) else 0
        first = np.flatnonzero(np.diff(ranks, prepend=-1))
        self._ratio = np.append(ratio[order[first]], 0.0)
        self._sums = []
        for values in (savings, cost):
            sums = np.zeros((count + 1, len(cost) + 1), np.int64)
            sums[ranks + 1, useful[order] + 1] = values[useful[order]]
            self._sums.append(sums.cumsum(axis=0).cumsum(axis=1))
        self._steps = [1 << bit for bit in reversed(range(count.bit_length()))]
        self._count = count

    def least(self, starts: Array, ends: Array, need: Array) -> NDArray[np.float64]:
        """What it costs at least to save ``need`` by parts of a span's things; infinite where all save less."""
        savings, cost = self._sums
        taken = np.zeros(np.shape(need), np.int64)
        for step in self._steps:
            more = np.minimum(taken + step, self._count)
            inside = savings[more, ends] - savings[more, starts] <= need
            taken = np.where(inside, more, taken)
        rest = need - (savings[taken, ends] - savings[taken, starts])
        whole = cost[taken, ends] - cost[taken, starts] + rest * self._ratio[taken]
        return np.where((taken == self._count) & (rest > 0), np.inf, whole)
