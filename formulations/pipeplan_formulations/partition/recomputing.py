"""What recomputation costs the spans of a chain partition problem: one list of choices for all stages of one speed."""

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.recomputation import Recomputation

if TYPE_CHECKING:
    from pipeplan_formulations.partition.instance import Boundaries, ChainPartition

Array = NDArray[np.int64]

UNKNOWN = -1


class Recomputing:
    """X and its cost for stages on spans of layers; what floors a dynamic programme asked for is kept."""

    def __init__(self, problem: "ChainPartition") -> None:
        self._problem = problem
        self._any = bool(problem.bytes.useful.any())
        self._by_stage: dict[int, Recomputation] = {}
        self._floors: dict[int, Array] = {}

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
        for s in np.flatnonzero(self._short(np.arange(len(longer)), edges[:-1], edges[1:])).tolist():
            span = s, edges[s : s + 1], edges[s + 1 : s + 2]
            longer[s] = (self._floor(*span) if optimistic else self._lists(s).least_each(*self._asked(*span))[1])[0]
        return longer

    def floors(self, s: int, a: Array, b: Array, wanted: NDArray[np.bool_]) -> Array:
        """What stage s's backward takes longer, at least, on the spans a … b − 1 that are ``wanted``; 0 on others."""
        longer = np.zeros(np.broadcast_shapes(a.shape, b.shape), np.int64)
        if not self._any or not wanted.any():
            return longer
        start, end = (np.broadcast_to(edge, longer.shape)[wanted] for edge in (a, b))
        place = start, end - start - 1
        known = self._table(s, int(place[1].max()) + 1)
        new = known[place] == UNKNOWN
        if new.any():
            start, end = start[new], end[new]
            cost = np.zeros(len(start), np.int64)
            short = self._short(np.array(s), start, end)
            if short.any():
                cost[short] = self._floor(s, start[short], end[short])
            known[start, end - start - 1] = cost
        longer[wanted] = known[place]
        return longer

    def choose(self, s: int, a: int, b: int) -> tuple[int, ...] | None:
        """X of stage s on the layers a … b − 1; None if nothing fits."""
        span = np.array(s), np.array(a), np.array(b)
        spare = int(self._problem.room.spare(*span))
        if spare >= int(self._problem.bytes.workspace[s, a:b].max()):
            return ()
        flight = int(self._problem.in_flight[s])
        if not self._any or flight == 0:
            return None
        return self._lists(s).choose(a, b, flight, spare)

    def _table(self, s: int, width: int) -> Array:
        """Floors of stage s that are known: rows are starts, columns lengths less one."""
        known = self._floors.get(s)
        if known is None or known.shape[1] < width:
            wider = np.full((self._problem.layers, width), UNKNOWN)
            if known is not None:
                wider[:, : known.shape[1]] = known
            self._floors[s] = known = wider
        return known

    def _short(self, s: Array, a: Array, b: Array) -> NDArray[np.bool_]:
        """Which stages fit only with recomputation."""
        room, limit = self._problem.room, self._problem.limit[s]
        short: NDArray[np.bool_] = (room.plain(s, a, b) > limit) & (room.least(s, a, b) <= limit)
        return short

    def _floor(self, s: int, a: Array, b: Array) -> Array:
        """What spans that are short of memory take longer at least; of crowded ones no list is made."""
        lists, asked = self._lists(s), self._asked(s, a, b)
        crowded = lists.crowded(a, b)
        floor = lists.rough(*asked)
        floor[~crowded] = lists.least_each(*(each[~crowded] for each in asked))[0]
        return floor

    def _asked(self, s: int, a: Array, b: Array) -> tuple[Array, Array, Array, Array]:
        """Starts, ends, in-flight counts and spare bytes."""
        return a, b, np.broadcast_to(self._problem.in_flight[s], a.shape), self._problem.room.spare(np.array(s), a, b)

    def _lists(self, s: int) -> Recomputation:
        if s not in self._by_stage:
            b = self._problem.bytes
            tables = (self._problem.forward[s], b.savings[s], b.workspace[s], b.again[s])
            self._by_stage[s] = _recomputation(
                *(table.astype(np.int64).tobytes() for table in tables), b.useful[s].tobytes()
            )
        return self._by_stage[s]


@lru_cache(maxsize=32)
def _recomputation(forward: bytes, savings: bytes, workspace: bytes, again: bytes, useful: bytes) -> Recomputation:
    """Problems that differ in depth, replicas or memory only share their lists, which take long to make.

    A search asks about a dozen micro-batch sizes and a few kinds of device in turn."""
    tables = [np.frombuffer(table, np.int64) for table in (forward, savings, workspace, again)]
    return Recomputation(tables[0], tables[1], tables[2], tables[3], np.frombuffer(useful, np.bool_))
