"""Usage vectors (units of each kind from a stage on), as indices into one flat array.

::

    two kinds, units (2, 1)      flat index    0      1      2      3      4      5
                                 usage       (0,0)  (0,1)  (1,0)  (1,1)  (2,0)  (2,1)        stride (2, 1)
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.common.layer_tables import Array


class Grid:
    """All usage vectors of a problem.

    Attributes
    ----------
    units : tuple of int
        The most units of each kind that stages can use: at most one stage of the largest width per layer.
    stride : tuple of int
        Difference of the flat index per unit of each kind.
    coordinates : array of int, shape (C, size)
        Units of each kind.
    total : array of int, shape (size,)
        Units of all kinds together.
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
        """The (flat) usages with 0, 1, 2 … units in total."""
        order = np.argsort(self.total, kind="stable")
        return np.split(order, np.searchsorted(self.total[order], np.arange(1, int(self.total[-1]) + 1)))

    @cached_property
    def least_in_flight(self) -> list[Array]:
        """The least k for each width (in the order of ``widths``) and usage from a stage on; at least 1."""
        modes = self._problem.modes[0]
        return [np.maximum(mode.in_flight.take(self.total - mode.flow, mode="clip"), 1) for mode in modes]

    @cached_property
    def most_in_flight(self) -> list[Array]:
        """The largest k for each width and usage from a stage on; at least 1."""
        modes = self._problem.modes[0]
        return [np.maximum(mode.most_in_flight.take(self.total - mode.flow, mode="clip"), 1) for mode in modes]

    @cached_property
    def partial(self) -> list[int]:
        """Flat usage behind each forced last stage, the very last stage first; then that of all forced last stages."""
        usages = np.cumsum([0, *(width * self.stride[kind] for kind, width in reversed(self._problem.last))])
        return [int(usage) for usage in usages]

    @cached_property
    def forced(self) -> int:
        """Units of the forced last stages."""
        return sum(width for _, width in self._problem.last)

    @cached_property
    def overfull(self) -> bool:
        """True if the forced stages need more units than available."""
        problem = self._problem
        taken = [problem.modes[kind][problem.widths.index(width)].takes for kind, width in problem.first + problem.last]
        return any(sum(wanted) > units for *wanted, units in zip(*taken, self.units, strict=True))

    def may_precede(self, behind: Array, kind: int, width: int) -> NDArray[np.bool_]:
        """True where a stage of this mode may precede suffixes of the usages ``behind``, given forced last stages."""
        free: NDArray[np.bool_] = self.total[behind] >= self.forced
        for place, mode in enumerate(reversed(self._problem.last)):
            if mode == (kind, width):
                free = free | (behind == self.partial[place])
        return free
