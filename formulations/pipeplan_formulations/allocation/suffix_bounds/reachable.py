r"""First and last boundary that each number of units can begin at: the states that the programme has to look at.

::

    boundary  n │▓▓                       ▓   first … last of each usage: no state outside of it lies on the way
                │  ▓▓▓                        of an allocation that stays within the target
                │    ▓▓▓▓
                │       ▓▓▓▓
              0 │          ▓▓▓▓▓▓▓
                └─────────────────── units from the boundary on

A stage that works on fewer layers finds it easier to stay within the target, below the ceiling and inside its memory.
So the least boundary that a number of units can carry everything from is found greedily, from what one stage less
can carry; and so is the last one that the units before can reach.
"""

import numpy as np

from pipeplan_formulations.allocation.instance import Array, ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.largest_backward import LargestBackward
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans, last_that_may_fit
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.clock import Clock


class Reachable:
    """First and last boundary of each usage.

    Attributes
    ----------
    first, last : array of int, shape (size,)
        Stages with these units can begin at ``first`` … ``last`` only; nowhere if ``first`` is larger.
    """

    def __init__(
        self,
        problem: ChainAllocation,
        grid: Grid,
        spans: Spans,
        ceiling: int | None,
        peak: LargestBackward | None,
        clock: Clock,
    ) -> None:
        self._problem, self._spans, self._ceiling, self._peak, self._clock = problem, spans, ceiling, peak, clock
        self._ends: dict[tuple[int, int, int, int], Array] = {}
        n = problem.layers
        self.first: Array = np.full(grid.size, n + 1)
        self.last: Array = np.zeros(grid.size, np.int64)
        self.first[0] = n
        steps = [
            (able, able - width * grid.stride[c], self._furthest(c, w, level))
            for level, usages in enumerate(grid.levels)
            for c in range(problem.kinds)
            for w, width in enumerate(problem.widths)
            if len(able := usages[grid.coordinates[c][usages] >= width])
        ]
        for able, behind, ends in steps:
            clock.check()
            end = self.first[behind]
            start = np.searchsorted(ends, end)
            later = self._next(ends)[np.minimum(end, n)]  # where no span ends there, one may lie behind it
            start = np.where(end > n, n + 1, np.where(start < end, start, later))
            self.first[able] = np.minimum(self.first[able], start)
        for able, behind, ends in reversed(steps):
            reached = ends[np.minimum(self.last[able], n - 1)]
            self.last[behind] = np.maximum(self.last[behind], reached)

    @property
    def closed(self) -> bool:
        """Whether no allocation at all stays within the target."""
        return not (self.first[1:] == 0).any() or int(self.last[0]) < self._problem.layers

    def _next(self, ends: Array) -> Array:
        """The first boundary from each on where a stage can begin, n + 1 if there is none: shape (n + 1,)."""
        n = self._problem.layers
        begins = np.where(ends > np.arange(n), np.arange(n), n + 1)
        return np.append(np.minimum.accumulate(begins[::-1])[::-1], n + 1)

    def _furthest(self, c: int, w: int, level: int) -> Array:
        """The furthest end of a stage with ``level`` units from it on, from each start or one before it."""
        problem = self._problem
        width, mode = problem.widths[w], problem.modes[c][w]
        least = max(1, mode.flying(level - mode.flow))
        many = problem.share(width)
        held = max(1, mode.most_flying(level - mode.flow)) if problem.alternating else many
        found = self._ends.get((c, w, least, held))
        if found is not None:
            return found
        self._clock.check()
        ends = np.minimum(self._spans.reach[c][w], last_that_may_fit(problem, c, w, least))
        if self._ceiling is not None and problem.objective == "step":
            forward, backward = problem.prefix["forward"][c], problem.prefix["backward"][c]
            late = max(many - held, 0) * forward + (many - 1) * backward
            for service in ((many - 1) * forward, late):
                below = np.searchsorted(service, service[:-1] + self._ceiling, side="right") - 1
                ends = np.minimum(ends, below)
        if self._peak is not None:
            backward = problem.prefix["backward"][c]
            ends = np.minimum(
                ends, np.searchsorted(backward, backward[:-1] + self._peak.largest(width), side="right") - 1
            )
        ends = np.maximum.accumulate(np.maximum(ends, np.arange(problem.layers)))
        self._ends[c, w, least, held] = ends
        return ends
