"""Tables of scalars: the algebra of elimination for one coordinate."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.sharding.instance import LARGEST, Array, possible


@dataclass(frozen=True, eq=False)
class ScalarTable:
    """Least costs of each cell, `LARGEST` where nothing is possible."""

    values: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of classes of each operator in the scope."""
        return self.values.shape

    @property
    def size(self) -> float:
        """Mean number of points of a cell."""
        return 1.0

    def at(self, cell: tuple[int, ...]) -> Array:
        """The point of a cell, of shape (1, 1), or none."""
        point = np.array([[self.values[cell]]])
        return point if point < LARGEST else point[:0]


class Scalars:
    """Joins of tables of scalars.

    Parameters
    ----------
    clock : Clock
    maximum : bool
        The coordinate is a maximum instead of a sum.
    """

    def __init__(self, clock: Clock, maximum: bool) -> None:
        self._clock, self._join = clock, np.maximum if maximum else np.add

    def table(self, costs: Array) -> ScalarTable:
        """Table of an edge's costs, of shape (…, 1)."""
        return ScalarTable(_values(costs))

    def classes(self, costs: Array, class_of: Array, count: int) -> ScalarTable:
        """Table of an operator whose signatures form classes; −1 stands for none."""
        values = np.full(count, LARGEST)
        np.minimum.at(values, class_of[class_of >= 0], _values(costs)[class_of >= 0])
        return ScalarTable(values)

    def combine(
        self, tables: Sequence[ScalarTable], axes: Sequence[tuple[int, ...]], shape: tuple[int, ...]
    ) -> ScalarTable:
        """Join the tables over all cells of ``shape``, then take the least along its last axis.

        ``axes`` has, for each table, the axes of ``shape`` that its own ones are.
        """
        self._clock.check()
        total = np.zeros(shape, np.int64)
        for table, own in zip(tables, axes, strict=True):
            self._join(total, aligned(table.values, own, len(shape)), out=total)
            np.minimum(total, LARGEST, out=total)
        return ScalarTable(np.asarray(total.min(axis=-1)))

    def split(
        self, tables: Sequence[ScalarTable], cells: Sequence[Sequence[tuple[int, ...]]], target: Array
    ) -> tuple[int, list[Array]]:
        """The class that gives ``target``, and its point in each table; ``cells[k]`` has the cell in each."""
        for k, row in enumerate(cells):
            own = [int(table.values[cell]) for table, cell in zip(tables, row, strict=True)]
            if int(self._join.reduce(own, initial=0)) == target[0]:
                return k, [np.array([value]) for value in own]
        raise AssertionError("every point comes from some class")


def _values(costs: Array) -> Array:
    return np.where(possible(costs), costs[..., 0], LARGEST)


def aligned(table: Array, axes: tuple[int, ...], rank: int) -> Array:
    """View of an array with axis i at ``axes[i]`` of ``rank`` axes, the others of length 1."""
    shape = [1] * rank
    for axis, length in zip(axes, table.shape, strict=True):
        shape[axis] = length
    return table.transpose(np.argsort(axes)).reshape(shape)
