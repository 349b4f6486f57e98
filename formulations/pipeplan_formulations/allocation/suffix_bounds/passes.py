"""Passes of the dynamic programme: limits on its states, and the blocks of stages that it processes at once.

Usages are processed by their number of units. For each number, kind and width, one sequence of array operations handles
every usage and start (rows) and every end (columns) inside the `Reachable` boundaries::

    usage, start   behind     ends          first … last boundary of the units behind, within the stage's reach
        9, 14         8       16 17 18 19
        9, 15         8          17 18 19
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.non_increasing import excess_ranges
from pipeplan_formulations.allocation.suffix_bounds.largest_backward import LargestBackward
from pipeplan_formulations.allocation.suffix_bounds.reachable import Reachable
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.allocation.suffix_bounds.suffix_tables import PassSettings, Quantity
from pipeplan_formulations.allocation.suffix_bounds.transition_costs import InFlightRange, Rate
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.layer_tables import Array

AT_ONCE = 2**20
"""Largest number of entries of one array operation."""


@dataclass(frozen=True)
class Rows:
    """States in which stages may begin: flat usage and boundary of each."""

    usage: Array
    start: Array

    def only(self, kept: NDArray[np.bool_] | slice) -> "Rows":
        """The states that a mask or slice keeps."""
        return Rows(self.usage[kept], self.start[kept])


@dataclass(frozen=True)
class Block:
    """Stages of one kind and width, by start (rows) and end (columns).

    Attributes
    ----------
    rows : Rows
    behind : array of int, shape (rows,)
        Flat usage behind the stages of each row.
    ends : array of int, shape (rows, columns)
    inside : array of bool, shape (rows, columns)
        False for entries that only pad a row.
    """

    rows: Rows
    behind: Array
    ends: Array
    inside: NDArray[np.bool_]


class Pass:
    """One pass of the programme: a target, optionally a ceiling on e, and the least head before each state.

    Attributes
    ----------
    reachable : Reachable
        First and last boundary of each usage.
    settings : PassSettings
    into : array of int, shape (C, 2, n)
        ĝ before a stage by its kind, 1 if a hop from the same kind leaves a node, and start; 0 at start 0.
    excess : range or None
        The range of excess that stages may have, if counts are non-increasing.
    refused : bool
        True if some stage was excluded because it needs an excess beyond the range.
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
        largest: LargestBackward | None = None,
    ) -> None:
        self.problem, self.grid, self.spans, self.clock, self.target = problem, grid, spans, clock, target
        self.reachable = Reachable(problem, grid, spans, ceiling, largest, clock)
        quantity: Quantity = "load" if problem.endless else "time"
        streams = problem.overlap == "stream" and quantity == "time" and ceiling is not None
        self.settings = PassSettings(quantity, ceiling, by_kind=problem.overlap == "none" or streams, largest=largest)
        before = spans.before if quantity == "time" else np.zeros(problem.layers + 1, np.int64)
        self._room = np.maximum(target - (before if heads is None else heads), -1)
        self.into = np.insert(problem.least_back, 0, 0, axis=2)
        self.excess: range | None = None
        self.refused = False
        self._chooses = problem.chooses and ceiling is not None and problem.alternating and not self.settings.by_kind
        self.rate = next(iter(Rate.of(problem, target, int(before[-1]))), None)

    @property
    def modes(self) -> list[tuple[int, int]]:
        """Every kind and index of a width."""
        return self.problem.every_mode

    def ranges(self, coarse: bool) -> list[range] | list[None]:
        """Ranges of excess to process in turn; None if excess does not matter."""
        if not self._chooses:
            return [None]
        counts = zip(self.grid.most_in_flight, self.problem.widths, strict=True)
        most = max(int((k * width - self.grid.total).max()) for k, width in counts)
        return [range(most + 1)] if coarse else excess_ranges(most)

    def room(self, c: int, rows: Rows) -> Array:
        """Time that the target leaves to a suffix that begins in each state on kind c; negative if none may begin."""
        return self._room[rows.start] if self._room.ndim == 1 else self._room[c, rows.usage, rows.start]

    def first_finish(self, mode: tuple[int, int], starts: Array, ends: Array) -> Array:
        """What follows the last backward of stages that begin at boundary 0, at least; 0 for all others."""
        found: Array = np.maximum(self.problem.endings(*mode, 0, ends), self.last_finish) * (starts == 0)
        return found

    @cached_property
    def last_finish(self) -> int:
        """The least E of the last stage, where its sums wait for the first stage; otherwise 0."""
        problem, n = self.problem, self.problem.layers
        if not problem.ends_together:
            return 0
        least = self.target + 1
        for c, w in [(c, problem.widths.index(width)) for c, width in problem.last[-1:]] or self.modes:
            usage = int(self.grid.step(c, problem.widths[w]))
            if usage < self.grid.size:
                starts = np.arange(self.reachable.first[usage], min(self.reachable.last[usage], n - 1) + 1)
                work = problem.prefix["forward"][c] + problem.prefix["backward"][c]
                busy = problem.share(problem.widths[w]) * (work[n] - work[starts])
                starts = starts[busy <= self.room(c, Rows(np.full_like(starts, usage), starts))]
                least = int(problem.endings(c, w, starts, n).min(initial=least))
        return least

    def in_time(
        self, mode: tuple[int, int], starts: Array, ends: Array, term: Array, into: Array | int
    ) -> NDArray[np.bool_]:
        """True for stages of a mode (kind and index of width) whose own ending is within the target, any stages before.

        ``term`` is the stage's own term of the way-back bound, ``into`` ĝ if that counts it.
        """
        begins = np.maximum(self.spans.forward_before[starts], self.problem.waits(*mode, starts, ends))
        kept: NDArray[np.bool_] = begins + term + into + self.problem.endings(*mode, starts, ends) <= self.target
        return kept

    def rows(self, usages: Array, starts: range) -> Rows:
        """All states of these usages at reachable boundaries within ``starts``."""
        first = np.maximum(self.reachable.first[usages], starts.start)
        last = np.minimum(self.reachable.last[usages], starts.stop - 1)
        # Each usage is repeated once per boundary; offset counts 0, 1, … within each usage.
        count = np.maximum(last - first + 1, 0)
        offset = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        return Rows(np.repeat(usages, count), np.repeat(first, count) + offset)

    def in_flight(self, w: int, level: int) -> InFlightRange:
        """In-flight counts that the range of excess allows a stage with ``level`` units from it on."""
        problem, width, mode = self.problem, self.problem.widths[w], self.problem.modes[0][w]
        least, most = max(1, mode.flying(level - mode.flow)), max(1, mode.most_flying(level - mode.flow))
        if self.excess is None:
            return InFlightRange(least, least, most)
        required = -(-(level + self.excess.start) // width)
        top = max(least, min((level + self.excess.stop - 1) // width, most))
        return InFlightRange(max(least, min(required, problem.share(width))), top, most)

    def blocks(self, c: int, w: int, rows: Rows, forced: bool) -> Iterator[Block]:
        """Blocks of the stages of width w on kind c that begin in the states ``rows``.

        ``forced``: the stage is a forced first one, so it is not one of the forced last ones.
        """
        # States with enough units of the kind, and time left within the target.
        problem, grid, width = self.problem, self.grid, self.problem.widths[w]
        rows = rows.only((grid.widest[c][rows.usage] >= width) & (self.room(c, rows) >= 0))
        behind = rows.usage - grid.step(c, width)
        if problem.last:
            kept = grid.total[behind] >= grid.forced if forced else grid.may_precede(behind, c, width)
            rows, behind = rows.only(kept), behind[kept]
        # Ends from ``first`` on that the usage behind can begin at, and that the stage reaches.
        first = np.maximum(rows.start + 1, self.reachable.first[behind])
        count = np.minimum(self.spans.reach[c][w][rows.start], self.reachable.last[behind]) - first + 1
        kept = count > 0
        rows, behind, first, count = rows.only(kept), behind[kept], first[kept], count[kept]
        # Parts of at most `AT_ONCE` entries, each row padded to the longest.
        few = max(1, AT_ONCE // int(count.max(initial=1)))
        for low in range(0, len(count), few):
            part = slice(low, low + few)
            columns = np.arange(int(count[part].max()))
            ends = np.minimum(first[part, None] + columns, problem.layers)
            yield Block(rows.only(part), behind[part], ends, columns < count[part, None])
