"""Tables of scalars: the algebra of elimination for one coordinate."""

from collections.abc import Sequence

import numpy as np

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.sharding.instance import LARGEST, Array, possible


class Scalars:
    """Tables are arrays of least costs, `LARGEST` where nothing is possible.

    Parameters
    ----------
    clock : Clock
    maximum : bool
        The coordinate is a maximum instead of a sum.
    """

    def __init__(self, clock: Clock, maximum: bool) -> None:
        self._clock, self._join = clock, np.maximum if maximum else np.add

    def table(self, costs: Array) -> Array:
        """Table of an edge's costs, of shape (…, 1)."""
        return np.where(possible(costs), costs[..., 0], LARGEST)

    def classes(self, costs: Array, class_of: Array, count: int) -> Array:
        """Table of an operator whose signatures form classes; −1 stands for none."""
        table = np.full(count, LARGEST)
        np.minimum.at(table, class_of[class_of >= 0], self.table(costs)[class_of >= 0])
        return table

    def points(self, table: Array, cell: tuple[int, ...]) -> Array:
        """The point of a cell, of shape (1, 1), or none."""
        return table[cell].reshape(-1, 1)[: int(table[cell] < LARGEST)]

    def slack(self, table: Array) -> Array:
        """Nothing is lost: zero."""
        return np.zeros(1, np.int64)

    def size(self, table: Array) -> float:
        """Mean number of points of a cell."""
        return 1.0

    def shape(self, table: Array) -> tuple[int, ...]:
        """Number of signatures of each operator in the scope."""
        return table.shape

    def combine(self, tables: Sequence[Array], axes: Sequence[tuple[int, ...]], shape: tuple[int, ...]) -> Array:
        """Join the tables over all cells of ``shape``, then take the least along its last axis.

        ``axes`` has, for each table, the axes of ``shape`` that its own ones are.
        """
        self._clock.check()
        total = np.zeros(shape, np.int64)
        for table, own in zip(tables, axes, strict=True):
            self._join(total, aligned(table, own, len(shape)), out=total)
            np.minimum(total, LARGEST, out=total)
        return np.asarray(total.min(axis=-1))

    def split(
        self, tables: Sequence[Array], cells: Sequence[Sequence[tuple[int, ...]]], target: Array
    ) -> tuple[int, list[Array]]:
        """The signature that gives ``target``, and its point in each table; ``cells[k]`` has the cell in each."""
        for k, row in enumerate(cells):
            own = [int(table[cell]) for table, cell in zip(tables, row, strict=True)]
            if int(self._join.reduce(own, initial=0)) == target[0]:
                return k, [np.array([value]) for value in own]
        raise AssertionError("every point comes from some signature")


def aligned(table: Array, axes: tuple[int, ...], rank: int) -> Array:
    """View of a table with axis i at ``axes[i]`` of ``rank`` axes, the others of length 1."""
    shape = [1] * rank
    for axis, length in zip(axes, table.shape, strict=True):
        shape[axis] = length
    return table.transpose(np.argsort(axes)).reshape(shape)
