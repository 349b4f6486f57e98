"""Classes of signatures: dominated signatures are dropped, those that no edge tells apart become one.

::

    signature   operator's costs   rows of its edges                         signature k gives way to k' where the
    0           (5, 3)             (0, 4, 4, 7, …)  ─┐ class 0, with the      operator's costs and all rows of k' are at
    1           (4, 6)             (0, 4, 4, 7, …)  ─┘ set {(5, 3), (4, 6)}   most as large: exchanging them in a choice
    2           (6, 3)             (2, 4, 4, 7, …)    dominated by 0          never costs more
"""

from collections.abc import Sequence
from operator import le

import numpy as np

from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.sharding.instance import Array, possible

FEW = 12
"""Largest number of signatures for which plain Python is faster than arrays."""


def classes(costs: Array, sides: Sequence[Array]) -> Array:
    """Class of each signature of an operator, counted from 0; −1 for those that are dropped.

    Parameters
    ----------
    costs : array, shape (K, D)
    sides : sequence of array, shape (K, K_u, D)
        Costs of each of its edges, with the operator's own axis first.
    """
    if len(costs) <= FEW:
        return _few(costs, sides)
    count = len(costs)
    rows = np.concatenate(
        [np.zeros((count, 1), np.int64), *(_plain(side).reshape(count, -1) for side in sides)], axis=1
    )
    _, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    rows, kind = rows[first], kind.ravel()
    better = np.array([(rows <= row).all(axis=1) for row in rows])[np.ix_(kind, kind)]  # [k, k']: k' is no worse
    own = _plain(costs)
    better &= (own[None] <= own[:, None]).all(axis=2)
    # Of equal signatures the first is kept: a dropped one has a better one that is kept, as the order has no cycle.
    better &= ~better.T | np.tri(count, k=-1, dtype=np.bool_)
    kept = possible(costs) & ~better.any(axis=1)
    class_of = np.full(count, -1)
    class_of[kept] = np.unique(kind[kept], return_inverse=True)[1]
    return class_of


def _few(costs: Array, sides: Sequence[Array]) -> Array:
    """`classes` in plain Python."""
    count, fits, own = len(costs), possible(costs).tolist(), _plain(costs).tolist()
    joined = _plain(np.concatenate(sides, axis=1)) if sides else np.zeros((count, 0), np.int64)
    rows = joined.reshape(count, -1).tolist()

    def better(one: int, two: int) -> bool:
        """Whether the first signature is no worse than the second."""
        return all(map(le, own[one], own[two])) and all(map(le, rows[one], rows[two]))

    kept = [
        fits[k] and not any(better(j, k) and (j < k or not better(k, j)) for j in range(count) if j != k)
        for k in range(count)
    ]
    kinds = sorted({tuple(row) for row, keeps in zip(rows, kept, strict=True) if keeps})
    number = {row: place for place, row in enumerate(kinds)}
    return np.array([number[tuple(row)] if keeps else -1 for row, keeps in zip(rows, kept, strict=True)], np.int64)


def _plain(costs: Array) -> Array:
    """Costs with `UNLIMITED` in every coordinate of what is impossible."""
    return np.where(possible(costs)[..., None], costs, UNLIMITED)
