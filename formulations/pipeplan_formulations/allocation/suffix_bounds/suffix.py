r"""The dynamic programme over suffixes: least value of what lies behind a boundary, for every usage at once.

::

    V(i, c, u)    layers i … n − 1 on exactly the units u, the first of their stages on kind c
                  = min over width w, end e, kind c' behind    max( own,  H step + V(e, c', u − w e_c) )       ``time``
                                                               max( load, link, V(e, c', u − w e_c) )          ``load``
    A(i, c, u)    = min over the same                          H step + A(e, c', u − w e_c)

``time`` is (3) without E_0, A that of (4), ``load`` the bottleneck. With a *ceiling*, spans and hops whose e of (4)
exceeds it are left out. With a *target*, so are states behind which no value within it can be reached, and with a
*floor* of e those where A with it exceeds the target. With a *peak*, stages obey (5) as if the largest backward of all
were the least that it may be, and none has a larger one than the most.

Where counts fall and a ceiling asks for long warm-ups, the tables are filled once for each range of excess (see
`non_increasing`), over those of the ranges below:

::

    range 2 … 3    k w = R + 2 or R + 3     before stages of the ranges 0, 1, and 2 … 3
    range 1        k w = R + 1              before those of 0 and 1
    range 0        k = ⌈R / w⌉, as in SNO   before those of 0, and of all others up to k w − R

Usages are taken by the number of units in them, fewest first (see `passes`).
"""

from dataclasses import dataclass

import numpy as np

from pipeplan_formulations.allocation.bounds import free_bounds
from pipeplan_formulations.allocation.instance import Array, ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.largest_backward import LargestBackward, Side
from pipeplan_formulations.allocation.suffix_bounds.passes import Block, Pass
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.allocation.suffix_bounds.suffix_tables import Behind, Tail
from pipeplan_formulations.allocation.suffix_bounds.transition_costs import Holds, added, finish_by_end
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.recomputation import IMPOSSIBLE
from pipeplan_formulations.common.report import Limits


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
    peaked : list of Table
        For each range, of those suffixes that hold the stage with the largest backward; ``levels`` are then of those
        behind it. Empty if nothing is known of it.
    """

    def __init__(self, levels: list[list[Table]], starts: list[int], peaked: list[Table]) -> None:
        self.levels, self.starts, self.peaked = levels, starts, peaked

    @property
    def whole(self) -> Array:
        """V of whole allocations by kind of the first stage and usage, E_0 included: shape (C, size)."""
        return (self.peaked or self.levels[-1])[-1 if self.peaked else 0].time[:, :, 0]

    @property
    def whole_trip(self) -> Array:
        """A of whole allocations."""
        return (self.peaked or self.levels[-1])[-1 if self.peaked else 0].trip[:, :, 0]

    def table(self, position: int, peaked: bool) -> Table:
        """Of stages from a position on; of those suffixes that hold the stage with the largest backward, if known."""
        return self.peaked[-1] if peaked and self.peaked else self.levels[-1][position]

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
            key = kind[here], usage[here], end[here]
            either = [tables[min(position + 1, len(tables) - 1)], *self.peaked[number : number + 1]]
            time[here] = np.minimum.reduce([table.time[key] for table in either])
            trip[here] = np.minimum.reduce([table.trip[key] for table in either])
        return time, trip


def run(
    problem: ChainAllocation,
    grid: Grid,
    spans: Spans,
    clock: Clock,
    target: int,
    ceiling: int | None = None,
    floor: int = 0,
    heads: Array | None = None,
    within: Layers | None = None,
    coarse: bool = False,
    peak: LargestBackward | None = None,
) -> Layers | None:
    """Fill the tables; None if it shows at once that no allocation stays within the target.

    ``heads`` are the least before each state (`prefix_tables`). ``within`` are tables with values no larger: states
    that they leave out are left out. ``coarse`` takes all ranges of excess for one, which bounds what they would give.
    """
    pass_ = Pass(problem, grid, spans, clock, target, ceiling, heads, peak)
    if pass_.reachable.closed:
        return None
    suffixes = _Suffixes(pass_, floor, within)
    forced = [[(kind, problem.widths.index(width))] for kind, width in problem.first]
    nothing = np.full((problem.kinds, grid.size, problem.layers + 1), IMPOSSIBLE)
    below = [Table(nothing, nothing)] * (len(forced) + 1)
    # (5) asks where it stands; with one width that would tell next to nothing.
    placed = peak is not None and not forced and not problem.phases and len(problem.widths) > 1
    held = Table(nothing, nothing)
    levels: list[list[Table]] = []
    starts, peaked = [], []
    for excess in pass_.ranges(coarse):
        pass_.excess, pass_.refused = excess, False
        # Without forced stages row 0 is a whole allocation; with them it takes one more pass for each.
        first = range(1 if forced or placed else 0, problem.layers)
        free, behind = suffixes.fill(
            len(forced), below[-1], pass_.modes, [(None, "before" if placed else "anywhere")], first
        )
        if placed:
            held, _ = suffixes.fill(0, held, pass_.modes, [(None, "behind"), (behind, "here")], range(problem.layers))
            peaked.append(held)
        tables = [free]
        for position in reversed(range(len(forced))):
            first = range(1, problem.layers) if position else range(1)
            table, behind = suffixes.fill(position, below[position], forced[position], [(behind, "anywhere")], first)
            tables.insert(0, table)
        levels.append(tables)
        starts.append(excess.start if excess is not None else 0)
        below = tables
        found = Layers(levels, starts, peaked)
        if not pass_.refused or found.meets(within):  # no stage asks for more than this range, or nothing is better
            break
    return found


@dataclass(frozen=True)
class _Suffixes:
    pass_: Pass
    floor: int
    within: Layers | None

    def fill(
        self,
        position: int,
        below: Table,
        modes: list[tuple[int, int]],
        rests: list[tuple[list[Tail] | None, Side]],
        starts: range,
    ) -> tuple[Table, list[Tail]]:
        """V and A for stages of these modes (kind and index of width) before each rest, or before each other (None).

        A stage that begins at boundary 0 is the first one, and its E_0 is counted. ``below``: what stages of less
        excess reach. With each rest is said where the stage with the largest backward stands, seen from those before.
        """
        table, pass_ = below.copy(), self.pass_
        problem, grid = pass_.problem, pass_.grid
        alone, forced = len(rests) == 1, rests[0][0] is not None
        tails = [Tail(problem, grid, pass_.sight, c, ends=alone and not forced) for c in range(problem.kinds)]
        within = self.within.table(position, peaked=not alone) if self.within is not None else None
        for level, usages in enumerate(grid.levels[1:], start=1):
            pass_.clock.check()
            rows = pass_.rows(usages, starts)
            for c, w in modes:
                holds = pass_.holds(w, level)
                if holds.top < holds.least:
                    pass_.refused = pass_.refused or holds.least <= holds.most
                    continue
                able = rows
                if within is not None:
                    able = rows.only(within.time[c, rows.usage, rows.start] < IMPOSSIBLE)
                for block in pass_.blocks(c, w, able, forced=forced):
                    for rest, side in rests:
                        for part in (tails if rest is None else rest)[c].parts(w):
                            self._improve(table, part, c, w, holds, block, side)
            if 0 in starts and level < grid.forced:
                table.time[:, usages, 0] = table.trip[:, usages, 0] = IMPOSSIBLE
            for tail in tails:
                tail.extend(usages, table.time[:, usages], table.trip[:, usages])
        return table, tails

    def _improve(self, table: Table, part: Behind, c: int, w: int, holds: Holds, block: Block, side: Side) -> None:
        """Improve V and A by the stages of a block before one part of what may lie behind."""
        pass_ = self.pass_
        value = part.value[block.behind[:, None], block.ends]
        row, column = np.nonzero(block.inside & (value < IMPOSSIBLE))
        if not len(row):
            return
        value, end, behind = value[row, column], block.ends[row, column], block.behind[row]
        usage, start = block.rows.usage[row], block.rows.start[row]
        send: Array | int = 0
        into: Array | int = 0
        if part.send is not None:
            send, into = part.send[part.leaves[behind], end], pass_.into[c, pass_.grid.leaves[c][usage], start]
        add = added(pass_.problem, pass_.spans, pass_.sight, (c, w), start, end, holds, send, into, side)
        pass_.refused = pass_.refused or add.refused
        if pass_.sight.quantity == "load":
            found = trip = np.maximum(add.term, value)
        else:
            finish = np.where(start == 0, finish_by_end(pass_.problem, c, w)[end], 0)
            found = np.maximum(add.term, add.work + value) + finish
            trip = add.work + part.trip[behind, end] + finish
        room = pass_.room(c, block.rows)[row]
        kept = add.open & (found <= room) & (trip + self.floor <= room)
        if not kept.any():
            return
        row = row[kept]
        edges = np.flatnonzero(np.diff(row, prepend=-1))
        at = c, block.rows.usage[row[edges]], block.rows.start[row[edges]]
        table.time[at] = np.minimum(table.time[at], np.minimum.reduceat(found[kept], edges))
        table.trip[at] = np.minimum(table.trip[at], np.minimum.reduceat(trip[kept], edges))


def frontier(problem: ChainAllocation, limits: Limits, up_to: int | None = None) -> Array:
    """Bounds on the objective by units used: the programme's values for every number of units of every kind.

    Parameters
    ----------
    problem : ChainAllocation
    limits : Limits
        Only ``time`` counts. When it has passed the bounds are those that cost nothing.
    up_to : int, optional
        Values beyond are not told apart, which saves time.

    Returns
    -------
    array of int, shape (u_1 + 1, …, u_C + 1)
        Entry u: no allocation that uses exactly u units of each kind is better; `IMPOSSIBLE` if none fits, and
        ``up_to + 1`` if the best lies beyond that. For 'step' this is the least (3), for 'bottleneck' the optimum.
    """
    grid = Grid(problem)
    shape = [units + 1 for units in grid.units]
    limit = problem.largest if up_to is None else min(up_to, problem.largest)
    clock = Clock(limits)
    try:
        spans = Spans(problem, grid, limit, clock)
        tables = run(problem, grid, spans, clock, limit)
    except OutOfTimeError:
        return free_bounds(problem, grid).reshape(shape)
    values: Array = tables.whole.min(axis=0) if tables is not None else np.full(grid.size, IMPOSSIBLE)
    if limit < problem.largest:
        values = np.where((values == IMPOSSIBLE) & (grid.total > 0), limit + 1, values)
    return values.reshape(shape)
