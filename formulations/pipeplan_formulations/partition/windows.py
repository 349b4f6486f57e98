"""What memory (1) and wishes leave open: how far a stage may reach, and where a boundary may lie.

::

    b_s = a ──────── stage s ────────▶ b_{s+1} ≤ last[s, a]

Left sides of (1) grow with b_{s+1}, so for each start one number says all, in bytes compared exactly. One thing shrinks
them: a stage that holds the first of two tied layers needs less from the moment on that it holds the last one too. So
ends come in *pieces*, a new one behind the last layer of each tie; within a piece left sides grow.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.partition.problem import Array, ChainPartition

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Windows:
    """Spans that keep (1) and lie on stages where their layers may.

    Attributes
    ----------
    pieces : array of int, shape (P + 1,)
        Piece p holds the ends ``pieces[p]`` < b ≤ ``pieces[p + 1]``.
    last : array of int, shape (P, S, n)
        The largest b_{s+1} of the piece that a stage s that begins at a may have; at most a if there is none.
    open : array of bool, shape (S + 1, n + 1)
        Whether b_s = b occurs in some partition that keeps (1) and the wishes. Nothing is open if no partition does.
    """

    pieces: Array
    last: Array
    open: Flags

    @property
    def possible(self) -> bool:
        """Whether some partition keeps (1) and the wishes."""
        return bool(self.open[0, 0])

    @property
    def farthest(self) -> Array:
        """The largest end of any piece; shape (S, n)."""
        farthest: Array = self.last.max(axis=0)
        return farthest

    def closed(self, s: int, starts: Array, ends: Array) -> Flags:
        """Which spans break (1); ``starts`` and ``ends`` broadcast."""
        if len(self.last) == 1:
            return np.asarray(ends > self.last[0, s, starts])
        piece = np.searchsorted(self.pieces, ends) - 1
        return np.asarray(ends > self.last[piece, s, starts])


def windows(problem: ChainPartition) -> Windows:
    """Every window of a problem."""
    lasts = {tie.last for tie in problem.ties if tie.resident}
    pieces = np.array([0, *sorted(lasts), problem.layers])
    last = np.stack([_last_ends(problem, low, high) for low, high in pairwise(pieces)])
    if problem.where is not None:
        np.minimum(last, _first_forbidden(problem.where), out=last)
    last = np.where(last > pieces[:-1, None, None], last, 0)
    return Windows(pieces, last, _open(problem, pieces, last))


def _last_ends(problem: ChainPartition, low: int, high: int) -> Array:
    """The largest end in low < b ≤ high that keeps (1), by bisection; a or less where there is none."""
    stages, n = problem.stages, problem.layers
    s, a = (axis.ravel() for axis in np.meshgrid(np.arange(stages), np.arange(n), indexing="ij"))
    fits = np.maximum(a, low)
    fails = np.maximum(fits, high) + 1
    while (open_ := np.flatnonzero(fails - fits > 1)).size:
        middle = (fits[open_] + fails[open_]) // 2
        ok = problem.room.least(s[open_], a[open_], middle) <= problem.limit[s[open_]]
        fits[open_] = np.where(ok, middle, fits[open_])
        fails[open_] = np.where(ok, fails[open_], middle)
    return fits.reshape(stages, n)


def _first_forbidden(where: Flags) -> Array:
    """The first layer from a on that may not lie on stage s; n if there is none."""
    n = where.shape[1]
    index = np.where(where, n, np.arange(n))
    first: Array = np.minimum.accumulate(index[:, ::-1], axis=1)[:, ::-1]
    return first


def _open(problem: ChainPartition, pieces: Array, last: Array) -> Flags:
    stages, n = last.shape[1:]
    allowed = np.ones(n + 1, np.bool_)
    if problem.cuts is not None:
        allowed[1:n] = problem.cuts
    ahead = np.zeros((stages + 1, n + 1), np.bool_)
    back = np.zeros_like(ahead)
    ahead[0, 0] = back[stages, n] = True
    for s in range(stages):  # a reaches a + 1 … last[s, a]: marks where intervals begin and end, then their sum
        marks = np.zeros(n + 2, np.int64)
        for low, ends in zip(pieces[:-1], last[:, s], strict=True):
            begun = np.flatnonzero(ahead[s, :n] & (ends > np.arange(n)))
            np.add.at(marks, np.maximum(begun, low) + 1, 1)
            np.add.at(marks, ends[begun] + 1, -1)
        ahead[s + 1] = (np.cumsum(marks)[: n + 1] > 0) & allowed
    for s in reversed(range(stages)):  # a is open if an open end lies in a + 1 … last[s, a]
        ends_before = np.insert(np.cumsum(back[s + 1]), 0, 0)
        for low, ends in zip(pieces[:-1], last[:, s], strict=True):
            begin = np.maximum(np.arange(n), low)
            back[s, :n] |= ends_before[np.maximum(ends, begin) + 1] > ends_before[begin + 1]
        back[s] &= allowed
    open_ = ahead & back
    return open_ if open_[0, 0] else np.zeros_like(open_)
