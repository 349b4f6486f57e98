"""Spans of layers that a stage may hold while T stays within a target, and the recomputation that each needs.

The recomputation of a span is computed when it is first needed, and kept. It is a lower bound where a list of
points was thinned out or would be too long, and exact elsewhere.
"""

from copy import copy
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.instance import Array, ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.layer_tables import sums_before
from pipeplan_formulations.common.recomputation import IMPOSSIBLE


@dataclass
class _Known:
    """Forwards to be run again, for spans of one kind and width in which not everything can be saved.

    ``rows[j, k − 1]`` is that of the span with the j-th of ``keys`` (sorted) and k micro-batches in flight.
    """

    keys: Array
    rows: Array
    by_content: dict[tuple[int, ...], Array] = field(default_factory=dict)


class Spans:
    """Spans of every kind and width (its index) of a problem.

    Attributes
    ----------
    reach : list of list of array, shape (n,)
        End of the longest span from each start; the start itself if there is none.
    before : array, shape (n + 1,)
        Least work of one micro-batch before each boundary.
    """

    def __init__(self, problem: ChainAllocation, grid: Grid, target: int, clock: Clock) -> None:
        self._problem, self._grid, self._clock = problem, grid, clock
        self.before = best_before(problem)
        self.reach = [[self._reach(c, width, target) for width in problem.widths] for c in range(problem.kinds)]
        self._savings = sums_before(np.where(problem.useful, problem.savings, 0))
        self._received = np.append(np.insert(problem.received, 0, 0), 0)
        self._known: dict[tuple[int, int], _Known] = {}

    def extra(self, kind: int, w: int, starts: Array, ends: Array, flights: Array | int) -> Array:
        """Forwards to be run again by replicas that hold ``flights`` micro-batches of the spans; shapes broadcast.

        `IMPOSSIBLE` where a span does not fit whatever is recomputed.
        """
        problem, options = self._problem, self._problem.options[kind]
        top = options.workspace
        starts, ends, flights = np.broadcast_arrays(starts, ends, flights)
        resident, saved = problem.prefix["resident"][kind, w], problem.prefix["saved"]
        spare = problem.limit[kind] - (resident[ends] - resident[starts])
        spare = spare - flights * (saved[ends] - saved[starts] + self._received[starts])
        found = np.zeros(spare.shape, np.int64)
        if spare.min(initial=IMPOSSIBLE) >= top.of_all:
            return found
        workspace = top.of(starts, ends)
        short = spare < workspace
        if not short.any():
            return found
        found[short] = IMPOSSIBLE
        tight = short & (spare + flights * (self._savings[ends] - self._savings[starts]) >= workspace)
        crowded = tight & options.crowded(starts, ends)
        if crowded.any():
            some = starts[crowded], ends[crowded], flights[crowded], spare[crowded]
            found[crowded] = options.rough(*some)
            tight &= ~crowded
        if tight.any():
            found[tight] = self._asked(kind, w, starts[tight], ends[tight], flights[tight])
        return found

    def narrowed(self, target: int) -> "Spans":
        """The same for another target; what is known of recomputation is shared."""
        other = copy(self)
        other.reach = [
            [other._reach(c, width, target) for width in self._problem.widths] for c in range(self._problem.kinds)
        ]
        return other

    def _reach(self, kind: int, width: int, target: int) -> Array:
        """Work alone, all micro-batches of a replica in a row, must stay within the target; one in flight must fit."""
        problem, starts = self._problem, np.arange(self._problem.layers)
        work = problem.prefix["forward"][kind] + problem.prefix["backward"][kind]
        if problem.objective == "bottleneck":
            room = np.full(problem.layers, target * problem.divisor // problem.share(width))
        else:
            room = (target - self.before[:-1]) // problem.share(width)
        ends = np.searchsorted(work, work[:-1] + room, side="right") - 1
        fitting = last_that_may_fit(problem, kind, problem.widths.index(width), 1)
        return np.maximum(np.minimum(np.where(room < 0, 0, ends), fitting), starts)

    def _asked(self, kind: int, w: int, starts: Array, ends: Array, flights: Array) -> Array:
        """`extra` of spans that may have to recompute, from what is known or the options of a stage."""
        many = int(self._grid.most[w].max())
        known = self._known.get((kind, w))
        if known is None:
            known = self._known[kind, w] = _Known(np.zeros(0, np.int64), np.zeros((0, many), np.int64))
        keys = starts * (self._problem.layers + 1) + ends
        new = np.setdiff1d(keys, known.keys)
        if len(new):
            rows = np.stack([self._row(kind, w, *divmod(key, self._problem.layers + 1)) for key in new.tolist()])
            keys_, rows_ = np.concatenate([known.keys, new]), np.concatenate([known.rows, rows])
            order = np.argsort(keys_)
            known.keys, known.rows = keys_[order], rows_[order]
        found: Array = known.rows[np.searchsorted(known.keys, keys), flights - 1]
        return found

    def _row(self, kind: int, w: int, start: int, end: int) -> Array:
        """What one span costs for every k; spans of the same content share it."""
        problem, known = self._problem, self._known[kind, w]
        flights = np.arange(1, known.rows.shape[1] + 1)
        spare = problem.spare(start, end, kind, problem.widths[w], flights)
        options = problem.options[kind]
        self._clock.check()
        content = *options.content(start, end), int(spare[0]), int(spare[-1])
        row = known.by_content.get(content)
        if row is None:
            row = known.by_content[content] = options.least(start, end, flights, spare)[0]
        return row


def best_before(problem: ChainAllocation) -> Array:
    """Least work of one micro-batch on all layers before each boundary, shape (n + 1,)."""
    best = (problem.forward + problem.backward).min(axis=0)
    return sums_before(best)


def last_that_may_fit(problem: ChainAllocation, kind: int, w: int, in_flight: int) -> Array:
    """The last end of a span from each start that may fit with everything recomputed, shape (n,)."""
    n = problem.layers
    stays = sums_before(problem.resident[kind, w] + in_flight * problem.least_held)
    room = problem.limit[kind] - in_flight * np.insert(problem.received, 0, 0)
    ends: NDArray[np.int64] = np.searchsorted(stays, stays[:n] + room, side="right") - 1
    return ends
