"""Equation (1): what stages need, for arrays of stages and spans, before and after the best choice of recomputation."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.partition.range_maximum import RangeMaximum

if TYPE_CHECKING:
    from pipeplan_formulations.partition.instance import ChainPartition

Array = NDArray[np.int64]


class Memory:
    """Bytes of stage s on the layers a … b − 1; s, a and b are arrays that broadcast."""

    def __init__(self, problem: "ChainPartition") -> None:
        self._problem = problem
        self._sorts = np.unique(problem.bytes.sort).tolist()
        self._workspaces = {sort: RangeMaximum(problem.bytes.workspace[sort]) for sort in self._sorts}
        self._beside = {
            sort: RangeMaximum(problem.bytes.beside[sort]) for sort in self._sorts if problem.beside is not None
        }
        self._levels = {sort: self._peaks(problem, sort) for sort in self._sorts}
        self._ties = [tie for tie in problem.ties if any(tie.resident)]

    @staticmethod
    def _peaks(problem: "ChainPartition", s: int) -> list[tuple[int, Array]]:
        """For each peak p of a recomputed layer: p, and what all layers of peak at most p save, summed along layers."""
        useful, savings, peaks = problem.bytes.useful[s], problem.bytes.savings[s], problem.bytes.again[s]
        return [
            (int(p), np.insert(np.cumsum(np.where(useful & (peaks <= p), savings, 0)), 0, 0))
            for p in np.unique(peaks[useful])
        ]

    def plain(self, s: Array, a: Array, b: Array) -> Array:
        """Left side of (1) where nothing is recomputed."""
        return self._stays(s, a, b) + self._largest(self._workspaces, s, a, b)

    def spare(self, s: Array, a: Array, b: Array) -> Array:
        """What the limit leaves for workspace where nothing is recomputed; negative if it leaves none."""
        room: Array = self._problem.limit[s] - self._stays(s, a, b)
        return room

    def least(self, s: Array, a: Array, b: Array) -> Array:
        """Left side of (1) with the recomputation that needs the least memory.

        If layers of peak p may be recomputed at all, all others of that peak or less may be too.
        """
        stays, flight = self._stays(s, a, b), self._problem.in_flight[s]
        workspace = self._largest(self._workspaces, s, a, b)
        best: Array = stays + workspace
        for sort in self._sorts:
            alike = len(self._sorts) == 1 or self._problem.bytes.sort[s] == sort
            for peak, savings in self._levels[sort]:
                reduced = stays + np.maximum(workspace, peak) - flight * (savings[b] - savings[a])
                best = np.where(alike, np.minimum(best, reduced), best)
        return best

    def _largest(self, tables: dict[int, RangeMaximum], s: Array, a: Array, b: Array) -> Array:
        """Z_s or Y_s."""
        if len(self._sorts) == 1:
            return tables[self._sorts[0]](a, b)
        found: Array = np.zeros(np.broadcast_shapes(np.shape(s), np.shape(a), np.shape(b)), np.int64)
        for sort, largest in tables.items():
            found = np.where(self._problem.bytes.sort[s] == sort, largest(a, b), found)
        return found

    def _stays(self, s: Array, a: Array, b: Array) -> Array:
        resident, saved = self._problem.prefix["resident"], self._problem.prefix["saved"]
        held = saved[s, b] - saved[s, a] + self._problem.bytes.received[s, a]
        total: Array = resident[s, b] - resident[s, a] + self._problem.in_flight[s] * held
        if self._beside:
            total = total + self._largest(self._beside, s, a, b)
        for tie in self._ties:
            total = total + np.array(tie.resident)[s] * tie.copied(a, b)
        return total
