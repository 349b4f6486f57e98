"""Blocks of stages, in the order in which the passes of the dynamic programme take them.

Usages are taken by the number of units in them. For each number, kind and width one row of array operations serves
every usage and start (rows) and every end (columns) inside the `Reachable`::

    usage, start   behind     ends          first … last boundary of the units behind, as far as the stage reaches
        9, 14         8       16 17 18 19
        9, 15         8          17 18 19
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.instance import Array, ChainAllocation
from pipeplan_formulations.allocation.non_increasing import excesses
from pipeplan_formulations.allocation.suffix_bounds.largest_backward import LargestBackward
from pipeplan_formulations.allocation.suffix_bounds.reachable import Reachable
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.allocation.suffix_bounds.suffix_tables import Quantity, Sight
from pipeplan_formulations.allocation.suffix_bounds.transition_costs import Holds
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.clock import Clock

AT_ONCE = 2**20
"""Most cells of one array operation."""


@dataclass(frozen=True)
class Rows:
    """Where stages may begin: flat usage and boundary of each."""

    usage: Array
    start: Array

    def only(self, kept: NDArray[np.bool_] | slice) -> "Rows":
        """Some of them."""
        return Rows(self.usage[kept], self.start[kept])


@dataclass(frozen=True)
class Block:
    """Stages of one kind and width.

    Attributes
    ----------
    rows : Rows
    behind : array of int, shape (rows,)
        Flat usage behind each.
    ends : array of int, shape (rows, columns)
    inside : array of bool, shape (rows, columns)
        Which of them count.
    """

    rows: Rows
    behind: Array
    ends: Array
    inside: NDArray[np.bool_]


class Pass:
    """One pass: a target, perhaps a ceiling on e, and the least head before each state.

    Attributes
    ----------
    room : array of int, shape (C, size, n + 1) or (n + 1,)
        What the target leaves to the suffix that begins on a kind with a usage at a boundary.
    excess : range or None
        The range of excess that is looked at, where counts fall.
    refused : bool
        Whether some stage asked for more.
    """

    def __init__(
        self,
        problem: ChainAllocation,
        grid: Grid,
        spans: Spans,
        clock: Clock,
        target: int,
        ceiling: int | None,
        heads: Array | None,
        peak: LargestBackward | None = None,
    ) -> None:
        self.problem, self.grid, self.spans, self.clock, self.target = problem, grid, spans, clock, target
        self.reachable = Reachable(problem, grid, spans, ceiling, peak, clock)
        quantity: Quantity = "load" if problem.objective == "bottleneck" else "time"
        streams = problem.overlap == "stream" and quantity == "time" and ceiling is not None
        self.sight = Sight(quantity, ceiling, apart=problem.overlap == "none" or streams, peak=peak)
        before = spans.before if quantity == "time" else np.zeros(problem.layers + 1, np.int64)
        self._room = np.maximum(target - (before if heads is None else heads), -1)
        self.into = np.insert(problem.least_back, 0, 0, axis=2)
        self.excess: range | None = None
        self.refused = False
        self._chooses = problem.chooses and ceiling is not None and problem.alternating and not self.sight.apart

    @property
    def modes(self) -> list[tuple[int, int]]:
        """Every kind and index of a width."""
        return [(c, w) for c in range(self.problem.kinds) for w in range(len(self.problem.widths))]

    def ranges(self, coarse: bool) -> list[range] | list[None]:
        """Of excess; None if it does not matter."""
        most = max(int(self.grid.total[-1]) - 1, 0)
        if not self._chooses:
            return [None]
        return [range(most + 1)] if coarse else excesses(most)

    def room(self, c: int, rows: Rows) -> Array:
        """What the target leaves to what begins there on kind c, negative if nothing may."""
        return self._room[rows.start] if self._room.ndim == 1 else self._room[c, rows.usage, rows.start]

    def rows(self, usages: Array, starts: range) -> Rows:
        """Every usage with every boundary that is reachable."""
        first = np.maximum(self.reachable.first[usages], starts.start)
        last = np.minimum(self.reachable.last[usages], starts.stop - 1)
        count = np.maximum(last - first + 1, 0)
        offset = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        return Rows(np.repeat(usages, count), np.repeat(first, count) + offset)

    def holds(self, w: int, level: int) -> Holds:
        """In-flight counts of a stage with ``level`` units from it on, inside the range of excess."""
        problem, width, mode = self.problem, self.problem.widths[w], self.problem.modes[0][w]
        least, most = max(1, mode.flying(level - mode.flow)), max(1, mode.most_flying(level - mode.flow))
        if self.excess is None:
            return Holds(least, least, most)
        asked = -(-(level + self.excess.start) // width)
        top = max(least, min((level + self.excess.stop - 1) // width, most))
        return Holds(max(least, min(asked, problem.share(width))), top, most)

    def blocks(self, c: int, w: int, rows: Rows, forced: bool) -> Iterator[Block]:
        """Stages of width w that begin in the rows. A forced first stage is not one of the last."""
        problem, grid, width = self.problem, self.grid, self.problem.widths[w]
        rows = rows.only((grid.coordinates[c][rows.usage] >= width) & (self.room(c, rows) >= 0))
        behind = rows.usage - width * grid.stride[c]
        if problem.last:
            kept = grid.total[behind] >= grid.forced if forced else grid.may_precede(behind, c, width)
            rows, behind = rows.only(kept), behind[kept]
        first = np.maximum(rows.start + 1, self.reachable.first[behind])
        count = np.minimum(self.spans.reach[c][w][rows.start], self.reachable.last[behind]) - first + 1
        kept = count > 0
        rows, behind, first, count = rows.only(kept), behind[kept], first[kept], count[kept]
        few = max(1, AT_ONCE // int(count.max(initial=1)))
        for low in range(0, len(count), few):
            part = slice(low, low + few)
            columns = np.arange(int(count[part].max()))
            ends = np.minimum(first[part, None] + columns, problem.layers)
            yield Block(rows.only(part), behind[part], ends, columns < count[part, None])
