"""What recomputation costs the spans of a chain partition problem: one list of choices for all stages of one speed."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.recompute import Recomputation

if TYPE_CHECKING:
    from pipeplan_formulations.partition.problem import Boundaries, ChainPartition

Array = NDArray[np.int64]


class Recomputing:
    """X and its cost for stages on spans of layers. Costs are kept once they are known."""

    def __init__(self, problem: "ChainPartition") -> None:
        self._problem = problem
        self._any = bool(problem.useful.any())
        self._by_speed: dict[bytes, Recomputation] = {}
        self._floors: dict[tuple[int, int, int], int] = {}

    def of_partition(self, boundaries: "Boundaries", optimistic: bool) -> Array:
        """What each stage's backward takes longer; 0 where nothing fits.

        Returns
        -------
        array of int, shape (S,)
        """
        longer = np.zeros(len(boundaries) - 1, np.int64)
        if not self._any:
            return longer
        edges = np.array(boundaries)
        for s in np.flatnonzero(self._short(np.arange(len(longer)), edges[:-1], edges[1:])):
            longer[s] = self._least(int(s), int(edges[s]), int(edges[s + 1]))[0 if optimistic else 1]
        return longer

    def floors(self, s: int, a: Array, b: Array, wanted: NDArray[np.bool_]) -> Array:
        """What stage s's backward takes longer, at least, on the spans a … b − 1 that are ``wanted``; 0 on others."""
        longer = np.zeros(np.broadcast_shapes(a.shape, b.shape), np.int64)
        if not self._any:
            return longer
        a, b = np.broadcast_to(a, longer.shape), np.broadcast_to(b, longer.shape)
        where = np.nonzero(wanted & self._short(np.array(s), a, b))
        for place, start, end in zip(zip(*where, strict=True), a[where].tolist(), b[where].tolist(), strict=True):
            key = (s, start, end)
            if key not in self._floors:
                self._floors[key] = self._least(s, start, end)[0]
            longer[place] = self._floors[key]
        return longer

    def choose(self, s: int, a: int, b: int) -> tuple[int, ...] | None:
        """X of stage s on the layers a … b − 1; None if nothing fits."""
        span = np.array(s), np.array(a), np.array(b)
        spare = int(self._problem.room.spare(*span))
        if spare >= int(self._problem.workspace[a:b].max()):
            return ()
        flight = int(self._problem.in_flight[s])
        if not self._any or flight == 0:
            return None
        return self._lists(s).choose(a, b, flight, spare)

    def _short(self, s: Array, a: Array, b: Array) -> NDArray[np.bool_]:
        """Which stages fit only with recomputation."""
        room, limit = self._problem.room, self._problem.limit[s]
        short: NDArray[np.bool_] = (room.plain(s, a, b) > limit) & (room.least(s, a, b) <= limit)
        return short

    def _least(self, s: int, a: int, b: int) -> tuple[int, int]:
        flight = self._problem.in_flight[s : s + 1]
        spare = self._problem.room.spare(np.array([s]), np.array([a]), np.array([b]))
        floor, cost = self._lists(s).least(a, b, flight, spare)
        return int(floor[0]), int(cost[0])

    def _lists(self, s: int) -> Recomputation:
        problem = self._problem
        key = problem.forward[s].tobytes()
        if key not in self._by_speed:
            self._by_speed[key] = Recomputation(
                problem.forward[s], problem.saved, problem.output_bytes, problem.workspace, problem.useful
            )
        return self._by_speed[key]
