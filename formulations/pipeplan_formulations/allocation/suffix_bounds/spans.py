"""Spans of layers that a stage may hold with T within a target, and the recomputation that each needs.

The recomputation of a span is computed when it is first needed, and cached with its problem. It is a lower bound if a
list of options was thinned out or would be too long, and exact otherwise.
"""

from copy import copy

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.allocation.tables import KnownCosts
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.layer_tables import Array, sums_before
from pipeplan_formulations.common.pass_times import Role
from pipeplan_formulations.common.span_options import IMPOSSIBLE


class Spans:
    """Spans of layers for every kind and index of a width.

    Attributes
    ----------
    reach : list of list of array, shape (n,)
        End of the longest span from each start; the start itself if there is none.
    before, forward_before : array, shape (n + 1,)
        Least work, and least forward time, of one micro-batch on its way to each boundary.
    """

    def __init__(self, problem: ChainAllocation, grid: Grid, target: int, clock: Clock) -> None:
        self._problem, self._grid, self._clock = problem, grid, clock
        self.before = least_work_before(problem, "ahead")
        self.forward_before = least_forward_before(problem)
        self.reach = [[self._reach(c, width, target) for width in problem.widths] for c in range(problem.kinds)]
        self._savings = sums_before(np.where(problem.useful, problem.savings, 0))
        self._known = problem.known_costs

    def extra(self, kind: int, w: int, starts: Array, ends: Array, in_flight: Array | int) -> Array:
        """Recomputed forward time per micro-batch, with ``in_flight`` micro-batches in flight; shapes broadcast.

        `IMPOSSIBLE` where a span does not fit with any recomputation.
        """
        problem, options = self._problem, self._problem.options[kind]
        top = options.workspace
        starts, ends, in_flight = np.broadcast_arrays(starts, ends, in_flight)
        # Bytes left for workspace with nothing recomputed; done if they suffice for every span.
        spare = problem.spare(kind, w, starts, ends, in_flight)
        found = np.zeros(spare.shape, np.int64)
        if spare.min(initial=IMPOSSIBLE) >= top.of_all:
            return found
        # Spans that do not fit as they stand; those that fit with everything recomputed are tight.
        workspace = top.of(starts, ends)
        short = spare < workspace
        if not short.any():
            return found
        found[short] = IMPOSSIBLE
        tight = short & (spare + in_flight * (self._savings[kind, ends] - self._savings[kind, starts]) >= workspace)
        # Tight spans with too many options get a lower bound, the others the cached least time.
        crowded = tight & options.crowded(starts, ends)
        if crowded.any():
            some = starts[crowded], ends[crowded], in_flight[crowded], spare[crowded]
            found[crowded] = options.quick_lower_bound(*some)
            tight &= ~crowded
        if tight.any():
            found[tight] = self._lookup(kind, w, starts[tight], ends[tight], in_flight[tight])
        return found

    def narrowed(self, target: int) -> "Spans":
        """The spans for another target, with a shared cache of recomputation."""
        other = copy(self)
        other.reach = [
            [other._reach(c, width, target) for width in self._problem.widths] for c in range(self._problem.kinds)
        ]
        return other

    def _reach(self, kind: int, width: int, target: int) -> Array:
        """Furthest end from each start: its work alone stays within the target, and one micro-batch in flight fits."""
        problem, starts, w = self._problem, np.arange(self._problem.layers), self._problem.widths.index(width)
        work = problem.prefix["forward"][kind] + problem.prefix["backward"][kind]
        if problem.endless:
            room = np.full(problem.layers, target * problem.divisor // problem.share(width))
        else:
            room = (target - self.before[:-1]) // problem.share(width)
        ends = np.searchsorted(work, work[:-1] + room, side="right") - 1
        fitting = last_that_may_fit(problem, kind, w, 1)
        if not problem.endless:  # own ending, without sends, recomputation; R ≥ 0 and ≥ Σ (p − h)
            alone = problem.share(width) * work + problem.prefix["update"][kind, w]
            for busy in (alone, alone + sums_before(problem.reduce[kind, w] - problem.hides[kind])):
                left = busy[:-1] + target - self.forward_before[:-1]
                fitting = np.minimum(fitting, np.searchsorted(busy, left, side="right") - 1)
        return np.maximum(np.minimum(np.where(room < 0, 0, ends), fitting), starts)

    def _lookup(self, kind: int, w: int, starts: Array, ends: Array, in_flight: Array) -> Array:
        """`extra` of spans that may have to recompute, from the cache, which is filled where it lacks a span."""
        many = int(self._grid.most_in_flight[w].max())
        known = self._known.get((kind, w))
        if known is None:  # its last key is beyond all spans
            known = self._known[kind, w] = KnownCosts(np.array([IMPOSSIBLE]), np.zeros((1, many), np.int64))
        keys = starts * (self._problem.layers + 1) + ends
        place = np.searchsorted(known.keys, keys)
        new = keys[known.keys[place] != keys]
        if len(new):
            new = np.unique(new)
            rows = np.stack([self._row(kind, w, *divmod(key, self._problem.layers + 1)) for key in new.tolist()])
            keys_, rows_ = np.concatenate([known.keys, new]), np.concatenate([known.rows, rows])
            order = np.argsort(keys_)
            known.keys, known.rows = keys_[order], rows_[order]
            place = np.searchsorted(known.keys, keys)
        found: Array = known.rows[place, in_flight - 1]
        return found

    def _row(self, kind: int, w: int, start: int, end: int) -> Array:
        """Least recomputed forward time of one span for every k; spans of equal content share it."""
        problem, known = self._problem, self._known[kind, w]
        in_flight = np.arange(1, known.rows.shape[1] + 1)
        spare = problem.spare(kind, w, start, end, in_flight)
        options = problem.options[kind]
        self._clock.check()
        content = *options.content(start, end), int(spare[0]), int(spare[-1])
        row = known.by_content.get(content)
        if row is None:
            row = known.by_content[content] = options.least(start, end, in_flight, spare)[0]
        return row


def least_work_before(problem: ChainAllocation, role: Role) -> Array:
    """Least work of one micro-batch on all layers before each boundary, in a role, shape (n + 1,)."""
    return sums_before(problem.of_layers(role).work.min(axis=0))


def least_forward_before(problem: ChainAllocation) -> Array:
    """Least G at each boundary, shape (n + 1,): forward time of one micro-batch on all layers before."""
    return sums_before((problem.objective == "step") * problem.of_layers("ahead").forward.min(axis=0))


def last_that_may_fit(problem: ChainAllocation, kind: int, w: int, in_flight: int) -> Array:
    """The last end of a span from each start that may fit with everything recomputed, shape (n,)."""
    n = problem.layers
    stays = sums_before(problem.resident[kind, w] + in_flight * problem.least_held[kind])
    room = problem.limit[kind] - in_flight * problem.received_at[kind, :-1]
    ends: NDArray[np.int64] = np.searchsorted(stays, stays[:n] + room, side="right") - 1
    return ends
