"""What stars add to the stage between two downsets I ⊂ J.

A star of M members, c of them in I, adds what it would add to the stage between {} and J where c = 0, and nothing
where c = M. Only the few with 0 < c < M, those that cross the border of I, have to be looked at J by J::

        I   │    J \\ I   │ rest            star a: c = 0       as for {} and J
      ┌─ a ─┼────────────┼                 star b: 0 < c < M   enters J \\ I if a reader lies there
      │     │  ●──b──●   ●
"""

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.graph.instance import GraphPartition
from pipeplan_formulations.graph.mode import Array


class StarSums:
    """Weighted sums over the stars that leave or enter, for rows of weights ``leave`` and ``enter`` (rows, E)."""

    def __init__(self, problem: GraphPartition, inside: NDArray[np.bool_], leave: Array, enter: Array) -> None:
        self._relay = problem.route == "relay"
        self._leave, self._enter = leave, enter
        sizes = [len(star.members) for star in problem.stars]
        self._sizes = np.array(sizes, np.int64)
        shape = (len(sizes), len(inside))
        self._source = np.array([inside[:, star.source] for star in problem.stars], np.bool_).reshape(shape)
        self._count = np.array([inside[:, star.members].sum(axis=1) for star in problem.stars], np.int64).reshape(shape)
        open_ = (self._count > 0) & (self._count < self._sizes[:, None])
        self._open = open_
        self._alone = leave @ (open_ & self._source) + enter @ (open_ & ~self._source)
        self._ahead = enter @ open_ if self._relay else self._alone
        self._behind = leave @ open_ if self._relay else self._alone

    def crossing(self, weights: Array) -> Array:
        """The weighted sum over the relayed stars that cross the border of each downset; shape (downsets,)."""
        found: Array = weights @ self._open
        return found

    def between(self, start: int, ends: Array) -> Array:
        """The sums for the stages from downset ``start`` to each of ``ends``; shape (rows, ends)."""
        if self._relay:
            relayed: Array = self._behind[:, ends] + self._ahead[:, start, None]
            return relayed
        crossing = np.flatnonzero(self._open[:, start])
        leave, enter = self._leave[:, crossing], self._enter[:, crossing]
        at = np.ix_(crossing, ends)
        open_, source = self._open[at], self._source[at]
        touched = self._count[at] > self._count[crossing, start, None]
        made = touched & source & ~self._source[crossing, start, None]
        sums: Array = self._alone[:, ends]
        sums = sums + leave @ (made.astype(np.int64) - (open_ & source))
        return sums + enter @ ((touched & ~made).astype(np.int64) - (open_ & ~source))
