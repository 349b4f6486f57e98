r"""Dynamic programme over suffixes: the least value of the stages behind a boundary, for every usage at once.

::

    V(i, c, u)    layers i … n − 1 on exactly the units u, the first of their stages on kind c
                  = min over width w, end e, kind c' behind    max( own,  H step + V(e, c', u − w e_c) )       ``time``
                                                               max( load, link, V(e, c', u − w e_c) )          ``load``
    A(i, c, u)    = min over the same                          A step + A(e, c', u − w e_c)
    K(i, c, u)    = min over the same                          F + B + max( rate (k − 1) w, hop + K(e, c', u − w e_c) )

V of ``time`` is the way back without E_0, A is the round trip, V of ``load`` is the bottleneck, and K what cycles from
the stages before take behind them, with a `Rate` for the micro-batches that they fall back there. The arguments of
`run` exclude stages and states:

- *target*: states whose value exceeds it, and stages whose own ending does, with the least forward time before them.
- *ceiling*: spans and hops whose one-stage delay e exceeds it.
- *least_delay*: states where A plus this e exceeds the target.
- *largest*, a range of the largest backward: stages with a larger backward, and stages whose alternation delay exceeds
  the ceiling if the largest backward is the least of the range.

If counts are non-increasing and a ceiling requires long warm-ups, the tables are filled once per range of excess (see
`non_increasing`), on top of those of the ranges below:

::

    range 2 … 3    k w = R + 2 or R + 3     before stages of the ranges 0, 1, and 2 … 3
    range 1        k w = R + 1              before those of 0 and 1
    range 0        k = ⌈R / w⌉, as in SNO   before those of 0, and of all others up to k w − R

Usages are processed by their number of units, fewest first (see `passes`).
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.bounds import free_bounds
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.largest_backward import LargestBackward, Side
from pipeplan_formulations.allocation.suffix_bounds.passes import Block, Pass
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.allocation.suffix_bounds.suffix_tables import SuffixTable, SuffixTables
from pipeplan_formulations.allocation.suffix_bounds.transition_costs import InFlightRange, Trips, added
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.common.span_options import IMPOSSIBLE


@dataclass(frozen=True)
class Table:
    """V, A and K by kind, usage and boundary: shape (C, size, n + 1)."""

    time: Array
    trip: Array
    cycle: Array | None

    def copy(self) -> "Table":
        """A copy to write into."""
        return Table(self.time.copy(), self.trip.copy(), None if self.cycle is None else self.cycle.copy())


class ProgrammeTables:
    """V and A of one run of the programme: one table per forced first stage, and one for all other stages.

    Attributes
    ----------
    levels : list of lists of Table
        For each range of excess, the tables of stages with excess up to its end. The last table of a list is that of
        stages that are not forced to be first. Boundary 0 of the first table holds whole allocations, E_0 included.
    starts : list of int
        Starts of the ranges.
    with_largest : list of Table
        For each range, the table of suffixes that contain the stage with the largest backward. ``levels`` are then
        those of suffixes behind that stage. Empty if its position is not distinguished.
    """

    def __init__(self, levels: list[list[Table]], starts: list[int], with_largest: list[Table]) -> None:
        self.levels, self.starts, self.with_largest = levels, starts, with_largest

    @property
    def whole(self) -> Array:
        """V of whole allocations by kind of the first stage and usage, E_0 included: shape (C, size)."""
        return (self.with_largest or self.levels[-1])[-1 if self.with_largest else 0].time[:, :, 0]

    @property
    def whole_trip(self) -> Array:
        """A of whole allocations."""
        return (self.with_largest or self.levels[-1])[-1 if self.with_largest else 0].trip[:, :, 0]

    @cached_property
    def possible(self) -> NDArray[np.bool_]:
        """True for the states that may follow some stage, by kind, usage and boundary."""
        every = chain(*self.levels, self.with_largest)
        possible: NDArray[np.bool_] = np.logical_or.reduce([table.time < IMPOSSIBLE for table in every])
        return possible

    def table(self, position: int, with_largest: bool) -> Table:
        """The table of stages at a position, or of suffixes that contain the stage with the largest backward."""
        return self.with_largest[-1] if with_largest and self.with_largest else self.levels[-1][position]

    def meets(self, bound: "ProgrammeTables | None") -> bool:
        """True if the least V and the least A equal those of ``bound``, which no allocation can be below."""
        if bound is None:
            return False
        pairs = (self.whole, bound.whole), (self.whole_trip, bound.whole_trip)
        return all(int(own.min()) == int(least.min()) for own, least in pairs)

    def behind(
        self, position: int, end: Array, kind: Array, usage: Array, excess: Array | None = None
    ) -> tuple[Array, Array]:
        """V and A behind stages at ``position``, by end, kind and usage behind; 0 behind the last stage.

        ``excess`` is the largest excess allowed behind each; any if None.
        """
        # The table of each entry's excess: the last range that starts at most there.
        if excess is None or len(self.levels) == 1:
            level = np.full_like(end, len(self.levels) - 1)
        else:
            level = np.searchsorted(self.starts, excess, side="right") - 1
        time, trip = np.zeros_like(end), np.zeros_like(end)
        for number, tables in enumerate(self.levels):
            here = (level == number) & (usage > 0)
            key = kind[here], usage[here], end[here]
            either = [tables[min(position + 1, len(tables) - 1)], *self.with_largest[number : number + 1]]
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
    least_delay: int = 0,
    heads: Array | None = None,
    within: ProgrammeTables | None = None,
    coarse: bool = False,
    largest: LargestBackward | None = None,
) -> ProgrammeTables | None:
    """Fill the tables; None if the reachable boundaries already exclude every allocation within the target.

    Parameters
    ----------
    target, ceiling, least_delay, largest
        See the module; None does not exclude anything.
    heads : array of int, optional
        The least head before each state (`prefix_tables`).
    within : ProgrammeTables, optional
        Tables with values no larger; states that are impossible there are skipped.
    coarse : bool
        Treat all ranges of excess as one, which gives lower bounds on their values.
    """
    pass_ = Pass(problem, grid, spans, clock, target, ceiling, heads, largest)
    if pass_.reachable.closed:
        return None
    suffixes = _Suffixes(pass_, least_delay, within)
    forced = [[(kind, problem.widths.index(width))] for kind, width in problem.first]
    nothing = np.full((problem.kinds, grid.size, problem.layers + 1), IMPOSSIBLE)
    empty = Table(nothing, nothing, nothing if problem.cycles else None)
    below = [empty] * (len(forced) + 1)
    # Alternation: distinguish the position of the stage with the largest backward; one width gains almost nothing.
    placed = largest is not None and not forced and not problem.phases and len(problem.widths) > 1
    containing = empty
    levels: list[list[Table]] = []
    starts, with_largest = [], []
    for excess in pass_.ranges(coarse):
        pass_.excess, pass_.refused = excess, False
        # Without forced stages boundary 0 holds whole allocations; each forced stage takes one more pass.
        # Stages that are not forced. If positions are distinguished, these lie behind the largest backward's stage.
        first = range(1 if forced or placed else 0, problem.layers)
        free, behind = suffixes.fill(
            len(forced), below[-1], pass_.modes, [(None, "before" if placed else "anywhere")], first
        )
        if placed:  # suffixes that contain that stage: it begins them ("here"), or lies behind their first stage
            containing, _ = suffixes.fill(
                0, containing, pass_.modes, [(None, "behind"), (behind, "here")], range(problem.layers)
            )
            with_largest.append(containing)
        # Forced first stages, from the last of them to the first stage of all.
        tables = [free]
        for position in reversed(range(len(forced))):
            first = range(1, problem.layers) if position else range(1)
            table, behind = suffixes.fill(position, below[position], forced[position], [(behind, "anywhere")], first)
            tables.insert(0, table)
        levels.append(tables)
        starts.append(excess.start if excess is not None else 0)
        below = tables
        found = ProgrammeTables(levels, starts, with_largest)
        if not pass_.refused or found.meets(within):  # no stage needs more excess, or the bound is reached already
            break
    return found


@dataclass(frozen=True)
class _Suffixes:
    """Filling of one table after the other, within one pass."""

    pass_: Pass
    least_delay: int
    within: ProgrammeTables | None

    def fill(
        self,
        position: int,
        below: Table,
        modes: list[tuple[int, int]],
        rests: list[tuple[list[SuffixTables] | None, Side]],
        starts: range,
    ) -> tuple[Table, list[SuffixTables]]:
        """Fill V and A for stages of some modes (kind and index of width); return them, and the tables behind stages.

        ``rests`` are the suffixes that may follow, None for those of this table itself, each with the position of the
        stage with the largest backward relative to the stages before. ``below`` is the table of smaller excess. A stage
        that begins at boundary 0 is the first one, and its E_0 is counted.
        """
        table, pass_ = below.copy(), self.pass_
        problem, grid = pass_.problem, pass_.grid
        alone, forced = len(rests) == 1, rests[0][0] is not None
        suffix_tables = [
            SuffixTables(problem, grid, pass_.settings, c, ends=alone and not forced) for c in range(problem.kinds)
        ]
        within = self.within.table(position, with_largest=not alone) if self.within is not None else None
        for level, usages in enumerate(grid.levels[1:], start=1):
            pass_.clock.check()
            rows = pass_.rows(usages, starts)
            for c, w in modes:
                # Modes whose fewest micro-batches exceed the range of excess are left to a later range.
                counts = pass_.in_flight(w, level)
                if counts.top < counts.least:
                    pass_.refused = pass_.refused or counts.least <= counts.most
                    continue
                able = rows
                if within is not None:
                    able = rows.only(within.time[c, rows.usage, rows.start] < IMPOSSIBLE)
                for block in pass_.blocks(c, w, able, forced=forced):
                    for rest, side in rests:
                        for part in (suffix_tables if rest is None else rest)[c].parts(w):
                            self._improve(table, part, c, w, counts, block, side)
            # No whole allocation has fewer units than the forced last stages.
            if 0 in starts and level < grid.forced:
                table.time[:, usages, 0] = table.trip[:, usages, 0] = IMPOSSIBLE
            for suffix_table in suffix_tables:
                cycles = None if table.cycle is None else table.cycle[:, usages]
                suffix_table.extend(usages, table.time[:, usages], table.trip[:, usages], cycles)
        return table, suffix_tables

    def _improve(
        self, table: Table, part: SuffixTable, c: int, w: int, counts: InFlightRange, block: Block, side: Side
    ) -> None:
        """Improve V and A by the stages of a block in front of the suffixes of one table."""
        pass_, problem = self.pass_, self.pass_.problem
        # One entry per stage with a possible suffix: V behind it, its end, usage behind, usage and start.
        value = part.value[block.behind[:, None], block.ends]
        row, column = np.nonzero(block.inside & (value < IMPOSSIBLE))
        if not len(row):
            return
        value, end, behind = value[row, column], block.ends[row, column], block.behind[row]
        usage, start = block.rows.usage[row], block.rows.start[row]
        # f behind and ĝ before the stage, if its own term counts them.
        send: Array | int = 0
        into: Array | int = 0
        if part.send is not None:
            send, into = part.send[part.leaves[behind], end], pass_.into[c, pass_.grid.leaves[c][usage], start]
        room, behind_trip = pass_.room(c, block.rows)[row], part.trip[behind, end]
        trips = None
        if problem.trips_twice:
            cycles = None if part.cycle is None else part.cycle[behind, end]
            trips = Trips(problem.widths[w], behind_trip, room, cycles, pass_.rate)
        add = added(problem, pass_.spans, pass_.settings, (c, w), start, end, counts, send, into, side, trips)
        pass_.refused = pass_.refused or add.refused
        # V and A of each stage with its suffix; E_0 at boundary 0.
        if pass_.settings.quantity == "load":
            found = trip = np.maximum(add.term, value)
        else:
            finish = pass_.first_finish((c, w), start, end)
            found = np.maximum(add.term, add.work + value) + finish
            trip = add.trip + behind_trip + finish
        # Keep stages that fit, below the ceiling and within the target.
        kept = add.open & (found <= room) & (trip + self.least_delay <= room)
        if pass_.settings.quantity == "time":
            kept &= pass_.in_time((c, w), start, end, add.term, into)
        if not kept.any():
            return
        # Entries of one row (usage and start) are adjacent: write the minimum of each row.
        row = row[kept]
        edges = np.flatnonzero(np.diff(row, prepend=-1))
        at = c, block.rows.usage[row[edges]], block.rows.start[row[edges]]
        table.time[at] = np.minimum(table.time[at], np.minimum.reduceat(found[kept], edges))
        table.trip[at] = np.minimum(table.trip[at], np.minimum.reduceat(trip[kept], edges))
        if table.cycle is not None and trips is not None:
            cycle = trips.cycle(add.held, add.work)
            table.cycle[at] = np.minimum(table.cycle[at], np.minimum.reduceat(cycle[kept], edges))


def frontier(problem: ChainAllocation, limits: Limits, up_to: int | None = None) -> Array:
    """Lower bounds on the objective by units used, for every number of units of every pool.

    Parameters
    ----------
    problem : ChainAllocation
    limits : Limits
        Only ``time`` is used. Once it is over, the bounds are those of `free_bounds`.
    up_to : int, optional
        Values beyond this are not computed, which saves time.

    Returns
    -------
    array of int, shape (u_1 + 1, …, u_P + 1)
        Entry u is a lower bound for allocations that use exactly u units of each pool. It is `IMPOSSIBLE` if none
        fits, and ``up_to + 1`` if the best exceeds ``up_to``. For 'step' it is the least way-back bound, for
        'bottleneck' the optimum.
    """
    grid = Grid(problem)
    limit = problem.largest if up_to is None else min(up_to, problem.largest)
    clock = Clock(limits)
    try:
        spans = Spans(problem, grid, limit, clock)
        tables = run(problem, grid, spans, clock, limit)
    except OutOfTimeError:
        return grid.by_units(free_bounds(problem, grid))
    values: Array = tables.whole.min(axis=0) if tables is not None else np.full(grid.size, IMPOSSIBLE)
    if limit < problem.largest:
        values = np.where((values == IMPOSSIBLE) & (grid.total > 0), limit + 1, values)
    return grid.by_units(values)
