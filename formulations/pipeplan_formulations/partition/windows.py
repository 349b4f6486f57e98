"""What (1) leaves open: how far a stage may reach, and where a boundary may lie.

::

    b_s = a ──────── stage s ────────▶ b_{s+1} ≤ last[s, a]

Left sides of (1) grow with b_{s+1}, so for each start one number says all about memory, in bytes compared exactly.
"""

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.partition.problem import Array, ChainPartition

Flags = NDArray[np.bool_]


def last_ends(problem: ChainPartition) -> Array:
    """The largest b_{s+1} that (1) allows a stage s that begins at b_s = a; a itself if not one layer fits.

    Returns
    -------
    array of int, shape (S, n)
    """
    n = problem.layers
    starts = np.arange(n)
    resident, saved = problem.prefix["resident"], problem.prefix["saved"]
    received = np.insert(problem.received, 0, 0)
    largest = _RangeMaximum(problem.workspace)
    last = np.empty((problem.stages, n), np.int64)
    for s in range(problem.stages):
        fits, fails = starts.copy(), np.full(n, n + 1)
        while (open_ := fails - fits > 1).any():
            a, b = starts[open_], (fits[open_] + fails[open_]) // 2
            held = saved[b] - saved[a] + received[a]
            need = resident[b] - resident[a] + problem.in_flight[s] * held + largest(a, b)
            ok = need <= problem.limit[s]
            fits[open_] = np.where(ok, b, fits[open_])
            fails[open_] = np.where(ok, fails[open_], b)
        last[s] = fits
    return last


def open_boundaries(last: Array) -> Flags:
    """Whether b_s = b occurs in some partition that keeps (1). Nothing is open if no partition does.

    Returns
    -------
    array of bool, shape (S + 1, n + 1)
    """
    stages, n = last.shape
    ahead = np.zeros((stages + 1, n + 1), np.bool_)
    back = np.zeros_like(ahead)
    ahead[0, 0] = back[stages, n] = True
    for s in range(stages):  # a reaches a + 1 … last[s, a]: marks where intervals begin and end, then their sum
        marks = np.zeros(n + 2, np.int64)
        begun = np.flatnonzero(ahead[s, :n])
        np.add.at(marks, begun + 1, 1)
        np.add.at(marks, last[s, begun] + 1, -1)
        ahead[s + 1] = np.cumsum(marks)[: n + 1] > 0
    for s in reversed(range(stages)):  # a is open if an open end lies in a + 1 … last[s, a]
        ends = np.insert(np.cumsum(back[s + 1]), 0, 0)
        back[s, :n] = ends[last[s] + 1] > ends[np.arange(n) + 1]
    open_ = ahead & back
    return open_ if open_[0, 0] else np.zeros_like(open_)


class _RangeMaximum:
    """Largest entry of values[a:b] for arrays a < b, from maxima over all runs of 2^k entries."""

    def __init__(self, values: Array) -> None:
        self._levels = [values]
        while 2 ** len(self._levels) <= len(values):
            half, level = 2 ** (len(self._levels) - 1), self._levels[-1]
            self._levels.append(np.maximum(level[:-half], level[half:]))

    def __call__(self, a: Array, b: Array) -> Array:
        power = np.frexp(b - a)[1] - 1
        result = np.empty(len(a), np.int64)
        for k in np.unique(power):
            here = power == k
            level = self._levels[k]
            result[here] = np.maximum(level[a[here]], level[b[here] - 2**k])
        return result
