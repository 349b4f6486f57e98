r"""The dynamic programme over suffixes: least value of what lies behind a boundary, for every usage at once.

::

    V(i, c, u)    layers i … n − 1 on exactly the units u, the first of their stages on kind c
                  = min over width w, end e, kind c' behind    max( own,  H step + V(e, c', u − w e_c) )       ``time``
                                                               H step + V(e, c', u − w e_c)                    ``trip``
                                                               max( load, link, V(e, c', u − w e_c) )          ``load``

``time`` is (3) without E_0, ``trip`` the A of (4), ``load`` the bottleneck. With a *ceiling*, spans and hops whose e of
(4) exceeds it are left out. With a *target*, so are states behind which no value within it can be reached.

For each boundary i, kind and width, one array operation serves all usages (rows) and ends (columns); ``behind`` holds
the hop and V of the stage behind, per usage and boundary.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.problem import Array, ChainAllocation, Mode
from pipeplan_formulations.allocation.spans import Spans
from pipeplan_formulations.allocation.terms import own, services, step_on
from pipeplan_formulations.allocation.usage import Grid
from pipeplan_formulations.clock import Clock
from pipeplan_formulations.recompute import IMPOSSIBLE

Floats = NDArray[np.float64]
Quantity = Literal["time", "trip", "load"]


@dataclass(frozen=True)
class Behind:
    """What lies behind a stage of one kind, by usage behind it and boundary: shape (size, n + 1).

    Attributes
    ----------
    value : array
        The best V, with the hop there; `IMPOSSIBLE` where there is none.
    send : array, shape (2, n + 1), or None
        f by whether the hop leaves a node, where the stage's own terms need it.
    leaves : array of int, shape (size,)
        Which row of ``send`` a usage takes.
    """

    value: Array
    send: Array | None
    leaves: Array


class Layers:
    """V of one run of the programme, one table for each forced first stage and one for all others.

    Attributes
    ----------
    tables : list of array, shape (n + 1, C, size)
        V by boundary, kind and usage: the last one is that of the stages that are not forced to be first; of the first
        one row 0 alone is a whole allocation, and E_0 is in it.
    """

    def __init__(self, tables: list[Array]) -> None:
        self.tables = tables

    @property
    def whole(self) -> Array:
        """Value of whole allocations by kind of the first stage and usage, E_0 included: shape (C, size)."""
        whole: Array = self.tables[0][0]
        return whole


def run(
    problem: ChainAllocation,
    grid: Grid,
    spans: Spans,
    clock: Clock,
    quantity: Quantity,
    target: int,
    ceiling: int | None = None,
) -> Layers:
    """Fill the tables."""
    every = [(c, w) for c in range(problem.kinds) for w in range(len(problem.widths))]
    sweep = _Sweep(problem, grid, spans, clock, quantity, target, ceiling)
    forced = [[(kind, problem.widths.index(width))] for kind, width in problem.first]
    # Without forced stages row 0 is a whole allocation; with them it takes one more sweep for each.
    free, behind = sweep.fill(every, None, range(1 if forced else 0, problem.layers))
    tables = [free]
    for position in reversed(range(len(forced))):
        starts = range(1, problem.layers) if position else range(1)
        table, behind = sweep.fill(forced[position], behind, starts)
        tables.insert(0, table)
    return Layers(tables)


class _Sweep:
    def __init__(
        self,
        problem: ChainAllocation,
        grid: Grid,
        spans: Spans,
        clock: Clock,
        quantity: Quantity,
        target: int,
        ceiling: int | None,
    ) -> None:
        self.problem, self.grid, self.spans, self.clock = problem, grid, spans, clock
        self.quantity, self.target, self.ceiling = quantity, target, ceiling
        # Where f is in a stage's own terms, what lies behind is kept apart by its kind.
        self.apart = quantity != "load" and (
            problem.overlap == "none" or (problem.overlap == "stream" and ceiling is not None)
        )
        self.apart = self.apart or (quantity == "load" and problem.overlap == "none")
        self.power, self.needed = self._strengths()

    def fill(self, modes: list[Mode], behind: "list[_Tail] | None", starts: range) -> tuple[Array, "list[_Tail]"]:
        """V for stages of these modes (kind and index of width) before what lies ``behind``, or before each other.

        A stage that begins at boundary 0 is the first one, and its E_0 is counted.
        """
        problem, n = self.problem, self.problem.layers
        table = np.full((n + 1, problem.kinds, self.grid.size), IMPOSSIBLE)
        own_tails = [_Tail(self, c, ends=behind is None) for c in range(problem.kinds)]
        source = behind if behind is not None else own_tails
        for i in reversed(starts):
            self.clock.check()
            usages = self._usages(i)
            for c, w in modes:
                self._stage(table, source[c], i, c, w, usages, behind is not None)
            room = self.target - (int(self.spans.before[i]) if self.quantity != "load" else 0)
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
        if self.quantity == "load":
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
        if self.quantity != "load":
            every = self.power[-1] * self.target / self.problem.micro_batches * (1 + 1e-9)
            enough &= self.power * self.target / self.problem.micro_batches <= every - float(self.spans.before[i])
        return np.flatnonzero(enough)

    def _stage(self, table: Array, tail: "_Tail", i: int, c: int, w: int, usages: Array, forced: bool) -> None:
        """Improve V(i, c, ·) by stages of width w that begin at i. A forced first stage is not one of the last."""
        problem, grid, width = self.problem, self.grid, self.problem.widths[w]
        longest = int(self.spans.reach[c][w][i]) - i
        taken = usages[grid.coordinates[c][usages] >= width]
        behind = taken - width * grid.stride[c]
        if problem.last:
            allowed = grid.total[behind] >= grid.forced if forced else grid.may_precede(behind, c, width)
            taken, behind = taken[allowed], behind[allowed]
        if longest < 1 or not len(taken):
            return
        # Before the first end that the units behind can still follow up, no span need be looked at.
        skipped = int(np.argmax(self.needed[i + 1 :] <= self.power[behind].max()))
        if skipped >= longest:
            return
        columns = slice(i + 1 + skipped, i + 1 + longest)
        ends = np.arange(columns.start, columns.stop)
        flight = grid.flight[w][taken]
        held = range(int(flight.min()), int(flight.max()) + 1)
        extra = self.spans.extra[c][w]
        extra = (extra[held.start - 1 : held.stop - 1] if len(extra) > 1 else extra)[:, i, skipped:longest]
        row = flight - held.start
        forward = problem.prefix["forward"][c][ends] - problem.prefix["forward"][c][i]
        backward = problem.prefix["backward"][c][ends] - problem.prefix["backward"][c][i]
        into = np.zeros_like(taken) if i == 0 else problem.least_back[c][grid.leaves[c][taken], i - 1]
        best = table[i, c, taken]
        for part in tail.parts(w):
            value = part.value[behind, columns]
            if part.send is None:
                cells = self._of_rows(w, held, forward, backward, extra)
                term, work = (cell[row if len(cell) > 1 else 0] for cell in cells)
                found = np.maximum(term, work + value)
            else:
                send = part.send[part.leaves[behind], columns]
                found = self._of_cells(
                    w, forward, backward + extra[row if len(extra) > 1 else 0], flight, send, into, value
                )
            if i == 0:
                found = found + self._finish(c, w)[ends]
            best = np.minimum(best, found.min(axis=1))
        table[i, c, taken] = np.minimum(best, IMPOSSIBLE)

    def _of_rows(self, w: int, flights: range, forward: Array, backward: Array, extra: Array) -> tuple[Array, Array]:
        """Own term and work of each k (rows, or one for all) and end."""
        problem, width = self.problem, self.problem.widths[w]
        many = problem.share(width)
        closed = extra >= IMPOSSIBLE
        backward = np.where(closed, 0, backward + extra)
        if self.quantity == "load":
            loads = (forward + backward) // (width * problem.unit)
            return np.where(closed, IMPOSSIBLE, loads), np.zeros_like(loads[:1])
        if self.ceiling is not None:
            held = problem.warm_up(np.array(flights)[:, None]) if problem.alternating else many
            lanes = services(problem.overlap, many, held, 1, forward, backward, 0, 0, 0)
            closed = closed | (reduce(np.maximum, lanes) > self.ceiling)
        work = np.where(closed, IMPOSSIBLE, forward + backward)
        if self.quantity == "trip":
            return np.zeros_like(work[:1]), work
        return np.where(closed, IMPOSSIBLE, own(problem.overlap, many, forward, backward, 0)), work

    def _of_cells(
        self,
        w: int,
        forward: Array,
        backward: Array,
        flight: Array,
        send: Array,
        into: Array,
        value: Array,
    ) -> Array:
        """Value of each usage (rows) and end, where sends or ĝ are in a stage's own terms."""
        problem, width = self.problem, self.problem.widths[w]
        many, into = problem.share(width), into[:, None]
        closed = (backward >= IMPOSSIBLE) | (value >= IMPOSSIBLE)
        backward = np.where(closed, 0, backward)
        if self.quantity == "load":
            load = own(problem.overlap, 1, forward, backward, send) + into
            return np.where(closed, IMPOSSIBLE, np.maximum(load // (width * problem.unit), value))
        if self.ceiling is not None:
            held = problem.warm_up(flight[:, None]) if problem.alternating else many
            wires = problem.wire_shares[width]
            lanes = services(problem.overlap, many, held, wires, forward, backward, send, 0, into)
            closed = closed | (reduce(np.maximum, lanes) > self.ceiling)
        found = forward + backward + value
        if self.quantity == "time":
            wait = (many - 1) * into if problem.overlap == "none" else 0
            found = np.maximum(found, own(problem.overlap, many, forward, backward, send) + wait)
        return np.where(closed, IMPOSSIBLE, found)

    def _finish(self, c: int, w: int) -> Array:
        """E_0 of a first stage by its end."""
        problem = self.problem
        if self.quantity == "load":
            return np.zeros(problem.layers + 1, np.int64)
        reduction = problem.prefix["reduce"][c, w]
        base = np.where(reduction > 0, problem.reduce_base[c, w], 0)
        finish: Array = problem.prefix["update"][c, w] + reduction + base
        return finish


class _Tail:
    """What lies behind stages of kind ``c``, filled boundary by boundary; with ``ends`` that may be nothing at all."""

    def __init__(self, sweep: _Sweep, c: int, ends: bool) -> None:
        self._sweep, self._kind = sweep, c
        problem, grid = sweep.problem, sweep.grid
        self._parts: dict[tuple[int, int], Behind] = {}
        self._keys = [self._key(w) for w in range(len(problem.widths))]
        kinds = range(problem.kinds) if sweep.apart else [0]
        for key in sorted(set(self._keys)):
            for behind in kinds:
                value = np.full((grid.size, problem.layers + 1), IMPOSSIBLE)
                send = None
                if sweep.apart:
                    send = np.zeros((2, problem.layers + 1), np.int64)
                    send[:, 1:-1] = problem.send[c, behind]
                    if behind != c:
                        send[0] = send[1]
                self._parts[key, behind] = Behind(value, send, grid.leaves[behind])
            if ends:
                self._parts[key, 0].value[0, -1] = 0
        self._kinds = list(kinds)

    def parts(self, w: int) -> list[Behind]:
        """What a stage whose width has index ``w`` chooses from."""
        return [self._parts[self._keys[w], behind] for behind in self._kinds]

    def extend(self, i: int, values: Array) -> None:
        """Take in V(i, ·, ·), shape (C, size), and the hops to it."""
        problem, grid = self._sweep.problem, self._sweep.grid
        live = np.flatnonzero((values < IMPOSSIBLE).any(axis=0))
        for (key, apart), part in self._parts.items():
            best = np.full(len(live), IMPOSSIBLE)
            for behind in [apart] if self._sweep.apart else range(problem.kinds):
                leaves = grid.leaves[behind][live] if behind == self._kind else np.ones_like(live)
                hop = self._kind, behind, leaves
                send, back = problem.send[hop][:, i - 1], problem.send_back[hop][:, i - 1]
                if self._sweep.quantity == "load":
                    found = values[behind, live]
                    if problem.overlap != "none":
                        found = np.maximum(found, np.maximum(send, back) // key)
                else:
                    found = values[behind, live] + step_on(problem.overlap, 0, send, back, problem.latency[hop])
                    if self._sweep.ceiling is not None and problem.overlap == "copy":
                        slow = (key - 1) * np.maximum(send, back) > self._sweep.ceiling
                        found = np.where(slow, IMPOSSIBLE, found)
                best = np.minimum(best, found)
            part.value[live, i] = best

    def _key(self, w: int) -> int:
        """Widths that see the same behind them share one table: by L_w, or by the period of a wire, or all."""
        problem, width = self._sweep.problem, self._sweep.problem.widths[w]
        if self._sweep.quantity == "load" and problem.overlap != "none":
            return problem.wire_loads[width]
        if self._sweep.ceiling is not None and problem.overlap == "copy":
            return problem.wire_shares[width]
        return 0
