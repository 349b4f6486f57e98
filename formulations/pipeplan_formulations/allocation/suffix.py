r"""The dynamic programme over suffixes: least value of what lies behind a boundary, for every usage at once.

::

    V(i, c, u)    layers i … n − 1 on exactly the units u, the first of their stages on kind c
                  = min over width w, end e, kind c' behind    max( own,  H step + V(e, c', u − w e_c) )       ``time``
                                                               H step + V(e, c', u − w e_c)                    ``trip``
                                                               max( load, link, V(e, c', u − w e_c) )          ``load``

``time`` is (3) without E_0, ``trip`` the A of (4), ``load`` the bottleneck. With a *ceiling*, spans and hops whose e of
(4) exceeds it are left out. With a *target*, so are states behind which no value within it can be reached.

Where counts fall and a ceiling asks for long warm-ups, the tables are filled once for each range of excess (see
`falling`), over those of the ranges below:

::

    range 2 … 3    k w = R + 2 or R + 3     before stages of the ranges 0, 1, and 2 … 3
    range 1        k w = R + 1              before those of 0 and 1
    range 0        k = ⌈R / w⌉, as in SNO   before those of 0, and of all others up to k w − R

For each boundary i, kind and width, one array operation serves all usages (rows) and ends (columns); ``behind`` holds
the hop and V of the stage behind, per usage and boundary.
"""

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.cells import Rows, of_cells, of_first, of_rows
from pipeplan_formulations.allocation.falling import excesses
from pipeplan_formulations.allocation.place import Mode
from pipeplan_formulations.allocation.problem import Array, ChainAllocation
from pipeplan_formulations.allocation.spans import Spans
from pipeplan_formulations.allocation.tails import Quantity, Sight, Tail
from pipeplan_formulations.allocation.usage import Grid
from pipeplan_formulations.clock import Clock
from pipeplan_formulations.recompute import IMPOSSIBLE

Floats = NDArray[np.float64]
Alive = dict[tuple[int, int, int, int], Array]


class Layers:
    """V of one run of the programme, one table for each forced first stage and one for all others.

    Attributes
    ----------
    tables : list of array, shape (n + 1, C, size)
        V by boundary, kind and usage: the last one is that of the stages that are not forced to be first; of the first
        one row 0 alone is a whole allocation, and E_0 is in it.
    levels : list of lists of array
        Such tables for stages of excess up to the end of each range; the last ones are ``tables``.
    starts : list of int
        Of the ranges.
    alive : mapping from (number of the forced stage, boundary, kind, index of width) to array of int
        Usages with which such a stage, its e of (4) left out of account, stays within the target.
    """

    def __init__(self, levels: list[list[Array]], starts: list[int], alive: Alive) -> None:
        self.levels, self.starts, self.tables, self.alive = levels, starts, levels[-1], alive

    @property
    def whole(self) -> Array:
        """Value of whole allocations by kind of the first stage and usage, E_0 included: shape (C, size)."""
        whole: Array = self.tables[0][0]
        return whole

    def behind(self, position: int, end: Array, kind: Array, usage: Array, excess: Array | None = None) -> Array:
        """V behind stages number ``position`` that end there; 0 behind the last one.

        ``excess`` is the largest that may stand there; any if None.
        """
        if excess is None or len(self.levels) == 1:
            level = np.full_like(end, len(self.levels) - 1)
        else:
            level = np.searchsorted(self.starts, excess, side="right") - 1
        found = np.zeros_like(end)
        for number, tables in enumerate(self.levels):
            here = (level == number) & (usage > 0)
            found[here] = tables[min(position + 1, len(tables) - 1)][end[here], kind[here], usage[here]]
        return found


def run(
    problem: ChainAllocation,
    grid: Grid,
    spans: Spans,
    clock: Clock,
    quantity: Quantity,
    target: int,
    ceiling: int | None = None,
    within: Layers | None = None,
) -> Layers:
    """Fill the tables; ``within`` are those of ``time`` for the same target without a ceiling, to save work."""
    every = [(c, w) for c in range(problem.kinds) for w in range(len(problem.widths))]
    waits = problem.overlap == "none" or (problem.overlap == "stream" and quantity != "load" and ceiling is not None)
    sweep = _Sweep(problem, grid, spans, clock, target, Sight(quantity, ceiling, apart=waits))
    sweep.within = within.alive if within is not None else None
    forced = [[(kind, problem.widths.index(width))] for kind, width in problem.first]
    nothing = np.full((problem.layers + 1, problem.kinds, grid.size), IMPOSSIBLE)
    below = [nothing] * (len(forced) + 1)
    levels, starts = [], []
    for excess in sweep.ranges:
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
        if not sweep.refused:  # no stage asks for more than this range
            break
    return Layers(levels, starts, sweep.alive)


class _Sweep:
    def __init__(
        self,
        problem: ChainAllocation,
        grid: Grid,
        spans: Spans,
        clock: Clock,
        target: int,
        sight: Sight,
    ) -> None:
        self.problem, self.grid, self.spans, self.clock = problem, grid, spans, clock
        self.target, self.sight = target, sight
        self.power, self.needed = self._strengths()
        self.chooses = problem.chooses and sight.ceiling is not None
        self.ranges: list[range | None] = [None]
        if self.chooses and problem.alternating and not sight.apart:
            self.ranges = [*excesses(max(int(grid.total.max()) - 1, 0))]
        self.excess: range | None = None
        self.refused = False
        self.position = 0
        self.alive: Alive = {}
        self.within: Alive | None = None
        self._rows: dict[tuple[int, int, int], Rows] = {}

    def fill(
        self, below: Array, modes: list[Mode], behind: list[Tail] | None, starts: range
    ) -> tuple[Array, list[Tail]]:
        """V for stages of these modes (kind and index of width) before what lies ``behind``, or before each other.

        A stage that begins at boundary 0 is the first one, and its E_0 is counted. ``below``: what stages of less
        excess reach.
        """
        problem = self.problem
        table = below.copy()
        own_tails = [Tail(problem, self.grid, self.sight, c, ends=behind is None) for c in range(problem.kinds)]
        source = behind if behind is not None else own_tails
        for i in reversed(starts):
            self.clock.check()
            usages = self._usages(i)
            for c, w in modes:
                self._stage(table, source[c], i, c, w, usages, behind is not None)
            room = self.target - (int(self.spans.before[i]) if self.sight.quantity != "load" else 0)
            table[i][table[i] > room] = IMPOSSIBLE
            if i and problem.cuts[i - 1]:
                for tail in own_tails:
                    tail.extend(i, table[i])
            if i == 0:
                table[0][:, self.grid.total < self.grid.forced] = IMPOSSIBLE
        return table, own_tails

    def _strengths(self) -> tuple[Floats, Floats]:
        """Power of each usage, and the power that the layers from each boundary on need to stay within the target.

        Of M micro-batches a stage of r replicas gives one replica M / r at least, in the time that its head leaves.
        """
        problem, grid, before = self.problem, self.grid, self.spans.before.astype(np.float64)
        if self.sight.quantity == "load":
            return grid.total.astype(np.float64), np.zeros(problem.layers + 1)
        best = problem.forward + problem.backward
        speed = (best.min(axis=0) / np.maximum(best, 1)).max(axis=1) * problem.unit  # of a unit of each kind
        per_unit = np.maximum(self.target - before, 0) / problem.micro_batches * (1 + 1e-9)
        rest = before[-1] - before
        needed = np.divide(rest, per_unit, out=np.full_like(rest, np.inf), where=per_unit > 0)
        return speed @ grid.coordinates, np.where(rest > 0, needed, 0.0)

    def _usages(self, i: int) -> Array:
        """Usages with which layers from i on, and those before i on the rest, can stay within the target on average."""
        enough = (self.power >= self.needed[i]) & (self.grid.total > 0)
        if self.sight.quantity != "load":
            every = self.power[-1] * self.target / self.problem.micro_batches * (1 + 1e-9)
            enough &= self.power * self.target / self.problem.micro_batches <= every - float(self.spans.before[i])
        return np.flatnonzero(enough)

    def _stage(self, table: Array, tail: Tail, i: int, c: int, w: int, usages: Array, forced: bool) -> None:
        """Improve V(i, c, ·) by stages of width w that begin at i. A forced first stage is not one of the last."""
        problem, grid, width = self.problem, self.grid, self.problem.widths[w]
        longest = int(self.spans.reach[c][w][i]) - i
        if self.within is not None:
            taken = self.within.get((self.position, i, c, w), usages[:0])
        else:
            taken = usages[grid.coordinates[c][usages] >= width]
            if problem.last:
                behind = taken - width * grid.stride[c]
                taken = taken[grid.total[behind] >= grid.forced if forced else grid.may_precede(behind, c, width)]
        if longest < 1 or not len(taken):
            return
        behind = taken - width * grid.stride[c]
        # Before the first end that the units behind can still follow up, no span need be looked at.
        skipped = int(np.argmax(self.needed[i + 1 :] <= self.power[behind].max()))
        if skipped >= longest:
            return
        columns = slice(i + 1 + skipped, i + 1 + longest)
        ends = np.arange(columns.start, columns.stop)
        flight, most = grid.flight[w][taken], grid.most[w][taken]
        held = range(int(flight.min()), int((most if self.chooses else flight).max()) + 1)
        low, top = flight, most
        if self.excess is not None:
            low, top = self._range(w, grid.total[taken], flight, most)
            able = low <= top
            if not able.all():
                self.refused = self.refused or bool((~able & (low <= most)).any())
                taken, behind, low, top, most = (each[able] for each in (taken, behind, low, top, most))
                if not len(taken):
                    return
        extra = self.spans.extra[c][w]
        extra = (extra[held.start - 1 : held.stop - 1] if len(extra) > 1 else extra)[:, i, skipped:longest]
        row = low - held.start
        forward = problem.prefix["forward"][c][ends] - problem.prefix["forward"][c][i]
        backward = problem.prefix["backward"][c][ends] - problem.prefix["backward"][c][i]
        into = np.zeros_like(taken) if i == 0 else problem.least_back[c][grid.leaves[c][taken], i - 1]
        best = np.full(len(taken), IMPOSSIBLE)
        for part in tail.parts(w):
            value = part.value[behind, columns]
            if part.send is None:
                cells = self._rows.get((i, c, w))
                if cells is None:
                    cells = of_rows(problem, self.sight, width, held, forward, backward, extra)
                    if len(self.ranges) > 1 and not forced:  # the ranges to come ask for the same
                        self._rows[i, c, w] = cells
                term, work = (cell[row if len(cell) > 1 else 0] for cell in (cells.term, cells.work))
                found = np.maximum(term, work + value)
                if cells.held is not None:
                    found = self._within(cells.held[row], top, most, found)
            else:
                send = part.send[part.leaves[behind], columns]
                found = of_cells(
                    problem,
                    self.sight,
                    width,
                    forward,
                    backward + extra[row if len(extra) > 1 else 0],
                    most,
                    send,
                    into,
                    value,
                )
            if i == 0:
                found = found + of_first(problem, self.sight, c, w)[ends]
            best = np.minimum(best, found.min(axis=1))
        table[i, c, taken] = np.minimum(best, table[i, c, taken])
        if self.sight.quantity == "time" and self.sight.ceiling is None:
            self.alive[self.position, i, c, w] = taken[best <= self.target - int(self.spans.before[i])]

    def _range(self, w: int, total: Array, least: Array, most: Array) -> tuple[Array, Array]:
        """The least and the largest k of stages of the range of excess, by units from the stage on."""
        assert self.excess is not None
        width = self.problem.widths[w]
        asked = -(-(total + self.excess.start) // width)
        low = np.maximum(least, np.minimum(asked, self.problem.share(width)))
        top = np.maximum(least, np.minimum((total + self.excess.stop - 1) // width, most))
        return low, top

    def _within(self, held: Array, top: Array, most: Array, found: Array) -> Array:
        """Values where k stays inside the range of excess; whether some k lies beyond it is kept in mind."""
        beyond = held > top[:, None]
        if self.excess is not None and not self.refused:
            self.refused = bool((beyond & (held <= most[:, None])).any())
        return np.where(beyond, IMPOSSIBLE, found)
