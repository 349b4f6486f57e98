r"""Reachable boundaries: the first and last boundary at which the stages of a usage can begin.

::

    boundary  n │▓▓                       ▓   first … last of each usage: states outside belong to no allocation
                │  ▓▓▓                        that stays within the target
                │    ▓▓▓▓
                │       ▓▓▓▓
              0 │          ▓▓▓▓▓▓▓
                └─────────────────── units from the boundary on

A part of a stage's span stays within the target, below the ceiling and within memory if the whole span does. So the
least boundary from which a usage can hold all layers follows greedily from the usages with one stage less. The last
boundary that the units before can reach follows in the same way.
"""

import numpy as np

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.largest_backward import LargestBackward
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans, last_that_may_fit
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.common.pass_times import Times


class Reachable:
    """First and last boundary of each usage, for a target, a ceiling on e and a range of the largest backward.

    Attributes
    ----------
    first, last : array of int, shape (size,)
        A stage with this usage from it on can begin at ``first`` … ``last`` only; nowhere if ``first`` is larger.
    """

    def __init__(
        self,
        problem: ChainAllocation,
        grid: Grid,
        spans: Spans,
        ceiling: int | None,
        largest: LargestBackward | None,
        clock: Clock,
    ) -> None:
        self._problem, self._spans, self._clock = problem, spans, clock
        self._ceiling, self._largest = ceiling, largest
        self._ends: dict[tuple[int, int, int, int], Array] = {}
        n = problem.layers
        self.first: Array = np.full(grid.size, n + 1)
        self.last: Array = np.zeros(grid.size, np.int64)
        self.first[0] = n
        # For each number of units, kind and width: usages of that stage, usages behind it, its furthest ends.
        steps = [
            (able, able - grid.step(c, width), self._furthest(c, w, level))
            for level, usages in enumerate(grid.levels)
            for c, w in problem.every_mode
            if len(able := usages[grid.widest[c][usages] >= (width := problem.widths[w])])
        ]
        # From few units to many: ``start`` is the least start of a stage that ends at ``first`` of the usage behind.
        for able, behind, ends in steps:
            clock.check()
            end = self.first[behind]
            start = np.searchsorted(ends, end)
            later = self._next(ends)[np.minimum(end, n)]  # if no span ends there, a later stage may begin there
            start = np.where(end > n, n + 1, np.where(start < end, start, later))
            self.first[able] = np.minimum(self.first[able], start)
        # From many units to few: the furthest end of a stage that begins at ``last`` or before.
        for able, behind, ends in reversed(steps):
            reached = ends[np.minimum(self.last[able], n - 1)]
            self.last[behind] = np.maximum(self.last[behind], reached)

    @property
    def closed(self) -> bool:
        """True if no allocation stays within the target."""
        return not (self.first[1:] == 0).any() or int(self.last[0]) < self._problem.layers

    def _next(self, ends: Array) -> Array:
        """The first boundary, from each one on, at which a stage can begin; n + 1 if there is none; shape (n + 1,)."""
        n = self._problem.layers
        begins = np.where(ends > np.arange(n), np.arange(n), n + 1)
        return np.append(np.minimum.accumulate(begins[::-1])[::-1], n + 1)

    def _services(self, c: int) -> Times:
        """Sums of F and B of services before each boundary on a kind."""
        tables = self._problem.apart.get("service")
        if tables is None:
            tables = Times(self._problem.prefix["forward"], self._problem.prefix["backward"])
        return Times(*(table[c] for table in tables))

    def _furthest(self, c: int, w: int, level: int) -> Array:
        """The furthest end, from each start or an earlier one, of a stage with ``level`` units from it on."""
        problem = self._problem
        width, mode = problem.widths[w], problem.modes[c][w]
        least = max(1, mode.flying(level - mode.flow))
        many = problem.share(width)
        held = max(1, mode.most_flying(level - mode.flow)) if problem.alternating else many
        found = self._ends.get((c, w, least, held))
        if found is not None:
            return found
        self._clock.check()
        # Memory and the target; then the one-stage delays, by prefix sums of each delay; then the largest backward.
        ends = np.minimum(self._spans.reach[c][w], last_that_may_fit(problem, c, w, least))
        if self._ceiling is not None and not problem.endless:
            forward, backward = self._services(c)
            late = max(many - held, 0) * forward + (many - 1) * backward
            for delay in ((many - 1) * forward, late):
                below = np.searchsorted(delay, delay[:-1] + self._ceiling, side="right") - 1
                ends = np.minimum(ends, below)
        if self._largest is not None:
            backward = problem.prefix["backward"][c]
            ends = np.minimum(
                ends, np.searchsorted(backward, backward[:-1] + self._largest.upper(width), side="right") - 1
            )
        ends = np.maximum.accumulate(np.maximum(ends, np.arange(problem.layers)))
        self._ends[c, w, least, held] = ends
        return ends
