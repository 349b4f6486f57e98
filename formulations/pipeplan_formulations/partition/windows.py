"""Windows: the ends that memory and placement constraints allow a stage, and the boundaries that remain open.

::

    b_s = a ──────── stage s ────────▶ b_{s+1} ≤ last[s, a]

The left side of the memory limit increases with b_{s+1}, copies of tied weights included: a stage has one from some
layer on. So the largest end describes all ends of a start, with bytes compared exactly. It does not bound the ends of
later starts, which may receive more bytes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.partition.instance import ChainPartition

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Windows:
    """Spans that satisfy the memory limit, on stages that their layers may lie on.

    Attributes
    ----------
    last : array of int, shape (S, n)
        The largest b_{s+1} of a stage s that begins at a; at most a if there is none.
    open : array of bool, shape (S + 1, n + 1)
        True if b_s = b in some partition that satisfies the memory limit and the constraints; all false if there is no
        partition.
    """

    last: Array
    open: Flags

    @property
    def possible(self) -> bool:
        """True if some partition satisfies the memory limit and the constraints."""
        return bool(self.open[0, 0])


def windows(problem: ChainPartition, clock: Clock | None = None) -> Windows:
    """The windows of a problem.

    Raises
    ------
    OutOfTimeError
        If the clock's time limit has passed.
    """
    last = _last_ends(problem, clock)
    if problem.where is not None:
        np.minimum(last, _first_forbidden(problem.where), out=last)
    return Windows(last, _open(problem, last))


def _last_ends(problem: ChainPartition, clock: Clock | None) -> Array:
    """The largest end that satisfies the memory limit for each stage and start a, by bisection; a if there is none."""
    stages, n = problem.stages, problem.layers
    s, a = (axis.ravel() for axis in np.meshgrid(np.arange(stages), np.arange(n), indexing="ij"))
    fits = a.copy()
    fails = np.full_like(fits, n + 1)
    while (open_ := np.flatnonzero(fails - fits > 1)).size:
        if clock is not None:
            clock.check()
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


def _open(problem: ChainPartition, last: Array) -> Flags:
    """Boundaries of each stage that are reachable from both ends of the chain."""
    stages, n = last.shape
    allowed = np.ones(n + 1, np.bool_)
    if problem.cuts is not None:
        allowed[1:n] = problem.cuts
    ahead = np.zeros((stages + 1, n + 1), np.bool_)
    back = np.zeros_like(ahead)
    ahead[0, 0] = back[stages, n] = True
    for s in range(stages):  # a reaches a + 1 … last[s, a]: marks where intervals begin and end, then their sum
        begun = np.flatnonzero(ahead[s, :n] & (last[s] > np.arange(n)))
        marks = np.zeros(n + 2, np.int64)
        np.add.at(marks, begun + 1, 1)
        np.add.at(marks, last[s, begun] + 1, -1)
        ahead[s + 1] = (np.cumsum(marks)[: n + 1] > 0) & allowed
    for s in reversed(range(stages)):  # a is open if an open end lies in a + 1 … last[s, a]
        ends_before = np.insert(np.cumsum(back[s + 1]), 0, 0)
        begin = np.arange(n)
        back[s, :n] = ends_before[np.maximum(last[s], begin) + 1] > ends_before[begin + 1]
        back[s] &= allowed
    open_ = ahead & back
    return open_ if open_[0, 0] else np.zeros_like(open_)
