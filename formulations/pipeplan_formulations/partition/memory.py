"""The memory limit for arrays of stages and spans, and the cost of the recomputation that it needs."""

from collections.abc import Callable

import numpy as np

from pipeplan_formulations.common.layer_tables import Array, Flags
from pipeplan_formulations.common.span_knapsack import SpanLargest
from pipeplan_formulations.common.span_options import IMPOSSIBLE, SpanOptions
from pipeplan_formulations.partition.tables import Boundaries, PartitionTables

UNKNOWN = -1


class Memory:
    """Bytes of stage s on the layers a … b − 1; s, a and b are arrays that broadcast."""

    def __init__(self, problem: PartitionTables) -> None:
        self._problem = problem
        self._sorts = sorted({*problem.bytes.sort.tolist()})
        self._workspaces = {sort: SpanLargest(problem.bytes.workspace[sort]) for sort in self._sorts}
        self._beside = {
            sort: SpanLargest(problem.bytes.beside[sort]) for sort in self._sorts if problem.beside is not None
        }
        recomputes = bool(problem.bytes.useful.any())
        self._options = {sort: problem.options(sort) for sort in self._sorts} if recomputes else {}
        self._ties = [tie for tie in problem.ties if any(tie.resident)]

    def plain(self, s: Array, a: Array, b: Array) -> Array:
        """Left side of the memory limit with nothing recomputed."""
        return self._stays(s, a, b) + self._largest(self._workspaces, s, a, b)

    def spare(self, s: Array, a: Array, b: Array) -> Array:
        """Bytes that the limit leaves for workspace with nothing recomputed; negative if it leaves none."""
        room: Array = self._problem.limit[s] - self._stays(s, a, b)
        return room

    def least(self, s: Array, a: Array, b: Array) -> Array:
        """Left side of the memory limit with the recomputation that needs the least memory."""
        if not self._options:
            return self.plain(s, a, b)
        in_flight = self._problem.in_flight[s]
        return self._stays(s, a, b) + self._by_sort(
            lambda sort: self._options[sort].fewest_bytes(a, b, in_flight), s, a, b
        )

    def _largest(self, tables: dict[int, SpanLargest], s: Array, a: Array, b: Array) -> Array:
        """Z_s or Y_s."""
        return self._by_sort(lambda sort: tables[sort].of(a, b), s, a, b)

    def _by_sort(self, bytes_of: Callable[[int], Array], s: Array, a: Array, b: Array) -> Array:
        """Bytes of each stage, given a function that returns those of a sort of stages."""
        if len(self._sorts) == 1:
            return bytes_of(self._sorts[0])
        found: Array = np.zeros(np.broadcast_shapes(np.shape(s), np.shape(a), np.shape(b)), np.int64)
        for sort in self._sorts:
            found = np.where(self._problem.bytes.sort[s] == sort, bytes_of(sort), found)
        return found

    def _stays(self, s: Array, a: Array, b: Array) -> Array:
        """Left side of the memory limit with nothing recomputed, without Z_s."""
        resident, saved = self._problem.prefix["resident"], self._problem.prefix["saved"]
        held = saved[s, b] - saved[s, a] + self._problem.bytes.received[s, a]
        total: Array = resident[s, b] - resident[s, a] + self._problem.in_flight[s] * held
        if self._beside:
            total = total + self._largest(self._beside, s, a, b)
        for tie in self._ties:
            total = total + np.array(tie.resident)[s] * tie.has_copy(a, b)
        return total


class SpanRecomputation:
    """X and its cost for stages on spans of layers, with a cache of lower bounds for dynamic programmes."""

    def __init__(self, problem: PartitionTables, room: Memory) -> None:
        self._problem, self._room = problem, room
        self._any = bool(problem.bytes.useful.any())
        self._by_stage: dict[int, SpanOptions] = {}
        self._lower_bounds: dict[int, Array] = {}

    def of_partition(self, boundaries: Boundaries, optimistic: bool) -> Array:
        """Recomputed forward time in each stage's backward; 0 where no X fits.

        ``optimistic`` takes a lower bound on it where the least is unknown.

        Returns
        -------
        array of int, shape (S,)
        """
        longer = np.zeros(len(boundaries) - 1, np.int64)
        if not self._any:
            return longer
        every, edges = np.arange(len(longer)), np.array(boundaries)
        short = np.flatnonzero(self._short(every, edges[:-1], edges[1:]))
        start, end = edges[short], edges[short + 1]
        if optimistic:
            for place, s in enumerate(short.tolist()):
                longer[s] = self._lower_bound(s, start[place : place + 1], end[place : place + 1])[0]
            return longer
        queries = start, end, self._problem.in_flight[short], self._room.spare(short, start, end)
        for s, *query in zip(short.tolist(), *(each.tolist() for each in queries), strict=True):
            longer[s] = self._options(s).chosen_time(*query)
        return longer

    def lower_bounds(self, s: int, a: Array, b: Array, wanted: Flags) -> Array:
        """Lower bound on recomputed forward time of stage s on the spans a … b − 1 that are ``wanted``; 0 on others."""
        longer = np.zeros(np.broadcast_shapes(a.shape, b.shape), np.int64)
        if not self._any or not wanted.any():
            return longer
        # Wanted spans, their places in the cache, and those that it lacks.
        start, end = (np.broadcast_to(edge, longer.shape)[wanted] for edge in (a, b))
        place = start, end - start - 1
        known = self._table(s, int(place[1].max()) + 1)
        new = known[place] == UNKNOWN
        if new.any():
            start, end = start[new], end[new]
            cost = np.zeros(len(start), np.int64)
            short = self._short(np.array(s), start, end)
            if short.any():
                cost[short] = self._lower_bound(s, start[short], end[short])
            known[start, end - start - 1] = cost
        longer[wanted] = known[place]
        return longer

    def quick_upper_bound(self, s: int, a: Array, b: Array) -> Array:
        """Recomputed forward time of a choice for stage s that fits; `IMPOSSIBLE` where none is found. Arrays (m,)."""
        longer = np.zeros(len(a), np.int64)
        short = np.flatnonzero(self._room.plain(np.array(s), a, b) > self._problem.limit[s])
        if len(short) and (not self._any or self._problem.in_flight[s] == 0):
            longer[short] = IMPOSSIBLE
        elif len(short):
            longer[short] = self._options(s).quick_upper_bound(*self._query(s, a[short], b[short]))
        return longer

    def choose(self, s: int, a: int, b: int) -> tuple[int, ...] | None:
        """X of stage s on the layers a … b − 1; None if nothing fits."""
        span = np.array(s), np.array(a), np.array(b)
        spare = int(self._room.spare(*span))
        if spare >= int(self._problem.bytes.workspace[s, a:b].max()):
            return ()
        in_flight = int(self._problem.in_flight[s])
        if not self._any or in_flight == 0:
            return None
        return self._options(s).choose(a, b, in_flight, spare)

    def _table(self, s: int, width: int) -> Array:
        """The cache of stage s, at least ``width`` wide: rows are starts, columns lengths less one."""
        known = self._lower_bounds.get(s)
        if known is None or known.shape[1] < width:
            wider = np.full((self._problem.layers, width), UNKNOWN)
            if known is not None:
                wider[:, : known.shape[1]] = known
            self._lower_bounds[s] = known = wider
        return known

    def _short(self, s: Array, a: Array, b: Array) -> Flags:
        """True for stages that fit only with recomputation."""
        limit = self._problem.limit[s]
        short: Flags = (self._room.plain(s, a, b) > limit) & (self._room.least(s, a, b) <= limit)
        return short

    def _lower_bound(self, s: int, a: Array, b: Array) -> Array:
        """Least recomputed forward time of spans that need some; a quick lower bound for crowded spans."""
        options, query = self._options(s), self._query(s, a, b)
        crowded = options.crowded(a, b)
        bound = options.quick_lower_bound(*query)
        bound[~crowded] = options.least_each(*(each[~crowded] for each in query))[0]
        return bound

    def _query(self, s: int, a: Array, b: Array) -> tuple[Array, Array, Array, Array]:
        """Starts, ends, in-flight counts and spare bytes."""
        return a, b, np.broadcast_to(self._problem.in_flight[s], a.shape), self._room.spare(np.array(s), a, b)

    def _options(self, s: int) -> SpanOptions:
        """Recomputation options of stage s."""
        if s not in self._by_stage:
            self._by_stage[s] = self._problem.options(s)
        return self._by_stage[s]
