"""Usage vectors, units of each kind from a stage on, as places in one flat array.

::

    two kinds, units (2, 1)      flat index    0      1      2      3      4      5
                                 usage       (0,0)  (0,1)  (1,0)  (1,1)  (2,0)  (2,1)        stride (2, 1)
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.instance import Array, ChainAllocation


class Grid:
    """Every usage vector of a problem.

    Attributes
    ----------
    units : tuple of int
        Most units of each kind that stages can use: no more than the widest stage of every layer.
    stride : tuple of int
    coordinates : array of int, shape (C, size)
        Units of each kind.
    total : array of int, shape (size,)
    leaves : array of int, shape (C, size)
        1 where a hop inside kind c with this usage behind it leaves a node.
    """

    def __init__(self, problem: ChainAllocation) -> None:
        most = problem.layers * problem.widths[-1]
        self.units = tuple(min(int(units), most) for units in problem.units)
        shape = [units + 1 for units in self.units]
        self.stride = tuple(int(np.prod(shape[c + 1 :], dtype=np.int64)) for c in range(len(shape)))
        self.coordinates: Array = np.indices(shape, dtype=np.int64).reshape(len(shape), -1)
        self.total: Array = self.coordinates.sum(axis=0)
        self.leaves: Array = (self.coordinates % problem.node[:, None] == 0).astype(np.int64)
        self._problem = problem

    @property
    def size(self) -> int:
        """Number of usage vectors."""
        return len(self.total)

    @cached_property
    def levels(self) -> list[Array]:
        """The (flat) usages of 0, 1, 2 … units in all."""
        order = np.argsort(self.total, kind="stable")
        return np.split(order, np.searchsorted(self.total[order], np.arange(1, int(self.total[-1]) + 1)))

    @cached_property
    def flight(self) -> list[Array]:
        """The least k for each width (in the order of ``widths``) and usage of a stage; at least 1."""
        modes = self._problem.modes[0]
        return [np.maximum(mode.in_flight.take(self.total - mode.flow, mode="clip"), 1) for mode in modes]

    @cached_property
    def most(self) -> list[Array]:
        """The largest k for each width and usage of a stage; at least 1."""
        modes = self._problem.modes[0]
        return [np.maximum(mode.most_in_flight.take(self.total - mode.flow, mode="clip"), 1) for mode in modes]

    @cached_property
    def partial(self) -> list[int]:
        """Flat usage behind each of the last stages that are forced, the very last one first; then that of all."""
        usages = np.cumsum([0, *(width * self.stride[kind] for kind, width in reversed(self._problem.last))])
        return [int(usage) for usage in usages]

    @cached_property
    def forced(self) -> int:
        """Units of the last stages that are forced."""
        return sum(width for _, width in self._problem.last)

    @cached_property
    def overfull(self) -> bool:
        """Whether the forced stages need more units than there are."""
        problem = self._problem
        taken = [problem.modes[kind][problem.widths.index(width)].takes for kind, width in problem.first + problem.last]
        return any(sum(wanted) > units for *wanted, units in zip(*taken, self.units, strict=True))

    def may_precede(self, behind: Array, kind: int, width: int) -> NDArray[np.bool_]:
        """Whether a stage of this mode may stand before suffixes of the usages ``behind``, as far as wishes go."""
        free: NDArray[np.bool_] = self.total[behind] >= self.forced
        for place, mode in enumerate(reversed(self._problem.last)):
            if mode == (kind, width):
                free = free | (behind == self.partial[place])
        return free
