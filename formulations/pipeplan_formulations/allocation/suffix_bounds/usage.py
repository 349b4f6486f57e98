"""Usage vectors (units of each pool from a stage on), as indices into one flat array.

::

    two pools, units (2, 1)      flat index    0      1      2      3      4      5
                                 usage       (0,0)  (0,1)  (1,0)  (1,1)  (2,0)  (2,1)        step (2, 1)

Where a stage may take several units for each of its width, the flow (the widths from a stage on) does not follow from
the units. Then it is one more coordinate, the last one.
"""

from functools import cached_property
from math import gcd

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.common.span_options import IMPOSSIBLE


class Grid:
    """All usage vectors of a problem.

    Attributes
    ----------
    units : tuple of int
        The most units of each pool that stages can use: at most one stage of the largest width per layer.
    coordinates : array of int, shape (P, size)
        Units of each pool.
    total : array of int, shape (size,)
        The flow: units of all pools together if each kind takes one unit for each of a stage's width.
    widest : array of int, shape (C, size)
        The largest width that a stage of each kind may have with this usage from it on.
    leaves : array of int, shape (C, size)
        1 where a hop inside kind c with this usage behind it leaves a node.
    apart : bool
        True if the flow is a coordinate of its own. Without ``flow`` it is not, and ``total`` only orders the usages.
    """

    def __init__(self, problem: ChainAllocation, flow: bool = True) -> None:
        most, pool, takes = problem.layers * problem.widths[-1], problem.pool, problem.takes
        self.units = tuple(min(int(units), most * int(takes.max())) for units in problem.units)
        unlike = bool((takes > 1).any())
        self.apart = flow and unlike
        # Units that any stage takes are multiples of each pool's scale.
        self._scale = [_scale(problem, number) if unlike else 1 for number in range(len(self.units))]
        self._shape = [units // scale + 1 for units, scale in zip(self.units, self._scale, strict=True)]
        self._shape += [min(problem.most_flow, most) + 1] * self.apart
        self._stride = [int(np.prod(self._shape[axis + 1 :], dtype=np.int64)) for axis in range(len(self._shape))]
        every: Array = np.indices(self._shape, dtype=np.int64).reshape(len(self._shape), -1)
        self.coordinates: Array = every[: len(self.units)] * np.array(self._scale)[:, None]
        self.total: Array = every[-1] if self.apart else every.sum(axis=0)
        self.widest: Array = self.coordinates[pool] // takes[:, None]
        if self.apart:
            self.widest = np.minimum(self.widest, self.total)
        self.leaves: Array = (self.coordinates[pool] % problem.node[pool, None] == 0).astype(np.int64)
        self._problem = problem

    def step(self, kind: int, width: Array | int) -> Array:
        """Difference of the flat index for stages of a kind and of these widths."""
        pool = int(self._problem.pool[kind])
        units = np.asarray(width) * int(self._problem.takes[kind])
        found: Array = units // self._scale[pool] * self._stride[pool] + np.asarray(width) * self.apart
        return found

    @property
    def size(self) -> int:
        """Number of usage vectors."""
        return len(self.total)

    @cached_property
    def levels(self) -> list[Array]:
        """The (flat) usages of a flow of 0, 1, 2 …, those that some stages may have."""
        order = np.argsort(self.total, kind="stable")
        order = order[self._possible[order]]
        return np.split(order, np.searchsorted(self.total[order], np.arange(1, int(self.total[-1]) + 1)))

    @property
    def _possible(self) -> NDArray[np.bool_]:
        """False for usages whose flow is too large or too small for the units."""
        if not self.apart:
            return np.ones(self.size, np.bool_)
        pool, takes, fewest, most = self._problem.pool, self._problem.takes, 0, 0
        for number, units in enumerate(self.coordinates):
            own = takes[pool == number]
            fewest = fewest + -(-units // own.max())
            most = most + units // own.min()
        possible: NDArray[np.bool_] = (fewest <= self.total) & (self.total <= most)
        return possible

    def by_units(self, values: Array) -> Array:
        """The least of some values, shape (size,), by units of each pool, shape (u_1 + 1, …, u_P + 1)."""
        if not self.apart:
            return values.reshape(self._shape)
        found = np.full([units + 1 for units in self.units], IMPOSSIBLE)
        found[tuple(slice(None, None, scale) for scale in self._scale)] = values.reshape(self._shape).min(axis=-1)
        return found

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
        usages = np.cumsum([0, *(int(self.step(kind, width)) for kind, width in reversed(self._problem.last))])
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


def _scale(problem: ChainAllocation, pool: int) -> int:
    """The largest number of which all stages of a pool take a multiple of units; at least 1."""
    widths = np.array(problem.widths)
    return (
        gcd(*(int(u) for c in np.flatnonzero(problem.pool == pool) for u in problem.takes[c] * widths[problem.able[c]]))
        or 1
    )
