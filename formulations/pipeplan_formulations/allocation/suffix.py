r"""The dynamic programme over suffixes: least value of what lies behind a boundary, for every usage at once.

::

    V(i, c, u)    layers i … n − 1 on exactly the units u, the first of their stages on kind c
                  = min over width w, end e, kind c' behind    max( own,  H step + V(e, c', u − w e_c) )       ``time``
                                                               max( load, link, V(e, c', u − w e_c) )          ``load``
    A(i, c, u)    = min over the same                          H step + A(e, c', u − w e_c)

``time`` is (3) without E_0, A that of (4), ``load`` the bottleneck. With a *ceiling*, spans and hops whose e of (4)
exceeds it are left out. With a *target*, so are states behind which no value within it can be reached, and with a
*floor* of e those where A with it exceeds the target.

Where counts fall and a ceiling asks for long warm-ups, the tables are filled once for each range of excess (see
`falling`), over those of the ranges below:

::

    range 2 … 3    k w = R + 2 or R + 3     before stages of the ranges 0, 1, and 2 … 3
    range 1        k w = R + 1              before those of 0 and 1
    range 0        k = ⌈R / w⌉, as in SNO   before those of 0, and of all others up to k w − R

Usages are taken by the number of units in them, fewest first. For each number, kind and width one row of array
operations serves every usage and start (rows) and every end (columns) inside the `Corridor`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.cells import Holds, added, of_first
from pipeplan_formulations.allocation.corridor import Corridor
from pipeplan_formulations.allocation.falling import excesses
from pipeplan_formulations.allocation.place import Mode
from pipeplan_formulations.allocation.problem import Array, ChainAllocation
from pipeplan_formulations.allocation.spans import Spans
from pipeplan_formulations.allocation.tails import Quantity, Sight, Tail
from pipeplan_formulations.allocation.usage import Grid
from pipeplan_formulations.clock import Clock
from pipeplan_formulations.recompute import IMPOSSIBLE

AT_ONCE = 2**20
"""Most cells of one array operation."""


@dataclass(frozen=True)
class Table:
    """V and A by kind, usage and boundary: shape (C, size, n + 1)."""

    time: Array
    trip: Array

    def copy(self) -> "Table":
        """Another one to write into."""
        return Table(self.time.copy(), self.trip.copy())


class Layers:
    """V and A of one run of the programme, one table for each forced first stage and one for all others.

    Attributes
    ----------
    levels : list of lists of Table
        Tables for stages of excess up to the end of each range. In each list the last one is that of the stages that
        are not forced to be first; of the first one boundary 0 alone is a whole allocation, and E_0 is in it.
    starts : list of int
        Of the ranges.
    """

    def __init__(self, levels: list[list[Table]], starts: list[int]) -> None:
        self.levels, self.starts = levels, starts

    @property
    def whole(self) -> Array:
        """V of whole allocations by kind of the first stage and usage, E_0 included: shape (C, size)."""
        return self.levels[-1][0].time[:, :, 0]

    @property
    def whole_trip(self) -> Array:
        """A of whole allocations."""
        return self.levels[-1][0].trip[:, :, 0]

    def meets(self, bound: "Layers | None") -> bool:
        """Whether no allocation is better than those of ``bound``, by V or by A; that is known to be impossible too."""
        if bound is None:
            return False
        pairs = (self.whole, bound.whole), (self.whole_trip, bound.whole_trip)
        return all(int(own.min()) == int(least.min()) for own, least in pairs)

    def behind(
        self, position: int, end: Array, kind: Array, usage: Array, excess: Array | None = None
    ) -> tuple[Array, Array]:
        """V and A behind stages number ``position`` that end there; 0 behind the last one.

        ``excess`` is the largest that may stand there; any if None.
        """
        if excess is None or len(self.levels) == 1:
            level = np.full_like(end, len(self.levels) - 1)
        else:
            level = np.searchsorted(self.starts, excess, side="right") - 1
        time, trip = np.zeros_like(end), np.zeros_like(end)
        for number, tables in enumerate(self.levels):
            here = (level == number) & (usage > 0)
            table = tables[min(position + 1, len(tables) - 1)]
            time[here] = table.time[kind[here], usage[here], end[here]]
            trip[here] = table.trip[kind[here], usage[here], end[here]]
        return time, trip


def run(
    problem: ChainAllocation,
    grid: Grid,
    spans: Spans,
    clock: Clock,
    target: int,
    ceiling: int | None = None,
    floor: int = 0,
    within: Layers | None = None,
    coarse: bool = False,
) -> Layers | None:
    """Fill the tables; None if it shows at once that no allocation stays within the target.

    ``within`` are tables for the same target whose values are no larger: states that they leave out are left out.
    ``coarse`` takes all ranges of excess for one, which bounds what they would give.
    """
    every = [(c, w) for c in range(problem.kinds) for w in range(len(problem.widths))]
    corridor = Corridor(problem, grid, spans, ceiling)
    if corridor.closed:
        return None
    sweep = _Sweep(problem, grid, spans, clock, target, ceiling, floor, corridor)
    sweep.within = within.levels[-1] if within is not None else None
    forced = [[(kind, problem.widths.index(width))] for kind, width in problem.first]
    nothing = np.full((problem.kinds, grid.size, problem.layers + 1), IMPOSSIBLE)
    below = [Table(nothing, nothing)] * (len(forced) + 1)
    levels, starts = [], []
    for excess in sweep.ranges(coarse):
        sweep.excess, sweep.refused, sweep.position = excess, False, len(forced)
        # Without forced stages row 0 is a whole allocation; with them it takes one more sweep for each.
        free, behind = sweep.fill(below[-1], every, None, range(1 if forced else 0, problem.layers))
        tables = [free]
        for position in reversed(range(len(forced))):
            first = range(1, problem.layers) if position else range(1)
            sweep.position = position
            table, behind = sweep.fill(below[position], forced[position], behind, first)
            tables.insert(0, table)
        levels.append(tables)
        starts.append(excess.start if excess is not None else 0)
        below = tables
        found = Layers(levels, starts)
        if not sweep.refused or found.meets(within):  # no stage asks for more than this range, or nothing is better
            break
    return found


@dataclass(frozen=True)
class _Rows:
    """Where stages may begin: flat usage and boundary of each."""

    usage: Array
    start: Array

    def only(self, kept: NDArray[np.bool_]) -> "_Rows":
        return _Rows(self.usage[kept], self.start[kept])


class _Sweep:
    def __init__(
        self,
        problem: ChainAllocation,
        grid: Grid,
        spans: Spans,
        clock: Clock,
        target: int,
        ceiling: int | None,
        floor: int,
        corridor: Corridor,
    ) -> None:
        self.problem, self.grid, self.spans, self.clock, self.corridor = problem, grid, spans, clock, corridor
        quantity: Quantity = "load" if problem.objective == "bottleneck" else "time"
        waits = problem.overlap == "none" or (
            problem.overlap == "stream" and quantity == "time" and ceiling is not None
        )
        self.sight = Sight(quantity, ceiling, apart=waits)
        self.room = target - spans.before if quantity == "time" else np.full(problem.layers + 1, target)
        self.floor = floor
        self.into = np.insert(problem.least_back, 0, 0, axis=2)  # ĝ by kind, whether a node is left, and start
        self.chooses = problem.chooses and ceiling is not None and problem.alternating and not waits
        self.excess: range | None = None
        self.refused = False
        self.position = 0
        self.within: list[Table] | None = None

    def ranges(self, coarse: bool) -> list[range] | list[None]:
        """Of excess; None if it does not matter."""
        most = max(int(self.grid.total[-1]) - 1, 0)
        if not self.chooses:
            return [None]
        return [range(most + 1)] if coarse else excesses(most)

    def fill(
        self, below: Table, modes: list[Mode], behind: list[Tail] | None, starts: range
    ) -> tuple[Table, list[Tail]]:
        """V and A for stages of these modes (kind and index of width) before what lies ``behind``, or each other.

        A stage that begins at boundary 0 is the first one, and its E_0 is counted. ``below``: what stages of less
        excess reach.
        """
        table = below.copy()
        kinds = range(self.problem.kinds)
        own_tails = [Tail(self.problem, self.grid, self.sight, c, ends=behind is None) for c in kinds]
        source = behind if behind is not None else own_tails
        for level, usages in enumerate(self.grid.levels[1:], start=1):
            self.clock.check()
            rows = self._rows(usages, starts)
            for c, w in modes:
                self._stage(table, source[c], c, w, level, rows, behind is not None)
            if 0 in starts and level < self.grid.forced:
                table.time[:, usages, 0] = table.trip[:, usages, 0] = IMPOSSIBLE
            for tail in own_tails:
                tail.extend(usages, table.time[:, usages], table.trip[:, usages])
        return table, own_tails

    def _rows(self, usages: Array, starts: range) -> _Rows:
        """Every usage with every boundary of the corridor."""
        first = np.maximum(self.corridor.first[usages], starts.start)
        last = np.minimum(self.corridor.last[usages], starts.stop - 1)
        count = np.maximum(last - first + 1, 0)
        offset = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        return _Rows(np.repeat(usages, count), np.repeat(first, count) + offset)

    def _stage(self, table: Table, tail: Tail, c: int, w: int, level: int, rows: _Rows, forced: bool) -> None:
        """Improve V and A by stages of width w. A forced first stage is not one of the last."""
        problem, grid, width = self.problem, self.grid, self.problem.widths[w]
        holds = self._holds(w, level)
        if holds.top < holds.least:
            self.refused = self.refused or holds.least <= holds.most
            return
        able = grid.coordinates[c][rows.usage] >= width
        if self.within is not None:
            able &= self.within[self.position].time[c, rows.usage, rows.start] < IMPOSSIBLE
        rows = rows.only(able)
        behind = rows.usage - width * grid.stride[c]
        if problem.last:
            kept = grid.total[behind] >= grid.forced if forced else grid.may_precede(behind, c, width)
            rows, behind = rows.only(kept), behind[kept]
        first = np.maximum(rows.start + 1, self.corridor.first[behind])
        count = np.minimum(self.spans.reach[c][w][rows.start], self.corridor.last[behind]) - first + 1
        kept = count > 0
        rows, behind, first, count = rows.only(kept), behind[kept], first[kept], count[kept]
        if not len(count):
            return
        few = max(1, AT_ONCE // int(count.max()))
        for low in range(0, len(count), few):
            part = slice(low, low + few)
            some = _Rows(rows.usage[part], rows.start[part])
            self._cells(table, tail, c, w, holds, some, behind[part], first[part], count[part])

    def _cells(
        self,
        table: Table,
        tail: Tail,
        c: int,
        w: int,
        holds: Holds,
        rows: _Rows,
        behind: Array,
        first: Array,
        count: Array,
    ) -> None:
        """Improve the rows' V and A by the ends from ``first`` on, so many of each."""
        problem, grid = self.problem, self.grid
        columns = np.arange(int(count.max()))
        ends = np.minimum(first[:, None] + columns, problem.layers)
        inside = columns < count[:, None]
        for part in tail.parts(w):
            value = part.value[behind[:, None], ends]
            row, column = np.nonzero(inside & (value < IMPOSSIBLE))
            if not len(row):
                continue
            value, end = value[row, column], ends[row, column]
            usage, start = rows.usage[row], rows.start[row]
            send, into = 0, 0
            if part.send is not None:
                send = part.send[part.leaves[behind[row]], end]
                into = self.into[c, grid.leaves[c][usage], start]
            add = added(problem, self.spans, self.sight, (c, w), start, end, holds, send, into)
            self.refused = self.refused or add.refused
            finish = np.where(start == 0, of_first(problem, self.sight, c, w)[end], 0)
            if self.sight.quantity == "load":
                found = trip = np.maximum(add.term, value)
            else:
                found = np.maximum(add.term, add.work + value) + finish
                trip = add.work + part.trip[behind[row], end] + finish
            room = self.room[start]
            kept = add.open & (found <= room) & (trip + self.floor <= room)
            if not kept.any():
                continue
            row = row[kept]
            edges = np.flatnonzero(np.diff(row, prepend=-1))
            at = c, rows.usage[row[edges]], rows.start[row[edges]]
            table.time[at] = np.minimum(table.time[at], np.minimum.reduceat(found[kept], edges))
            table.trip[at] = np.minimum(table.trip[at], np.minimum.reduceat(trip[kept], edges))

    def _holds(self, w: int, level: int) -> Holds:
        """In-flight counts of a stage with ``level`` units from it on, inside the range of excess."""
        problem, total, width = self.problem, np.array(level), self.problem.widths[w]
        least, most = (max(1, int(rule(total, width))) for rule in (problem.in_flight, problem.most_in_flight))
        if self.excess is None:
            return Holds(least, least, most)
        asked = -(-(level + self.excess.start) // width)
        top = max(least, min((level + self.excess.stop - 1) // width, most))
        return Holds(max(least, min(asked, problem.share(width))), top, most)
