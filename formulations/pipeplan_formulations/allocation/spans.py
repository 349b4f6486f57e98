"""Which spans of layers a stage may hold while T stays within a target, and what recomputation each needs.

::

    extra[kind][width][k − 1, a, j]   forwards to be run again by a replica that holds k micro-batches of the stage
                                      a … a + j; IMPOSSIBLE where it does not fit whatever is recomputed

``extra`` is a lower bound where a list of `Recomputation` was thinned out or would be too long, and exact elsewhere.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.problem import Array, ChainAllocation
from pipeplan_formulations.allocation.usage import Grid
from pipeplan_formulations.recompute import IMPOSSIBLE


class Spans:
    """Tables for every kind and width (its index) of a problem.

    Attributes
    ----------
    reach : list of list of array, shape (n,)
        End of the longest span from each start; the start itself if there is none.
    extra : list of list of array, shape (K or 1, n, longest)
        One row if k makes no difference.
    exact : bool
        Whether every entry of ``extra`` is exact.
    """

    def __init__(self, problem: ChainAllocation, grid: Grid, target: int) -> None:
        self._problem = problem
        self.exact = True
        self.before = best_before(problem)
        self.reach = [[self._reach(c, width, target) for width in problem.widths] for c in range(problem.kinds)]
        self.extra = [self._extra(c, grid) for c in range(problem.kinds)]

    def _reach(self, kind: int, width: int, target: int) -> Array:
        """Work alone, all micro-batches of a replica in a row, must stay within the target; one in flight must fit."""
        problem, starts = self._problem, np.arange(self._problem.layers)
        work = problem.prefix["forward"][kind] + problem.prefix["backward"][kind]
        if problem.objective == "bottleneck":
            room = np.full(problem.layers, (target + 1) * width * problem.unit - 1)
        else:
            room = (target - self.before[:-1]) // problem.share(width)
        ends = np.searchsorted(work, work[:-1] + room, side="right") - 1
        ends = np.minimum(np.where(room < 0, 0, ends), _last_that_may_fit(problem, kind, problem.widths.index(width)))
        return np.maximum(ends, starts)

    def _spare(self, kind: int, width: int, flights: Array) -> Array:
        """What (2) leaves to workspace, shape (K, n, longest)."""
        problem, longest = self._problem, self._longest(kind, width)
        starts = np.arange(problem.layers)
        ends = np.minimum(starts[:, None] + 1 + np.arange(longest), problem.layers)
        resident, saved = problem.prefix["resident"][kind, width], problem.prefix["saved"]
        stays = resident[ends] - resident[:-1, None]
        held = saved[ends] - saved[:-1, None] + np.insert(problem.received, 0, 0)[:, None]
        spare: Array = problem.limit[kind] - stays - flights[:, None, None] * held
        return spare

    def _longest(self, kind: int, width: int) -> int:
        return max(1, int((self.reach[kind][width] - np.arange(self._problem.layers)).max()))

    def _extra(self, kind: int, grid: Grid) -> list[Array]:
        """All widths of a kind at once: one span's list answers for every width and k."""
        problem = self._problem
        tables: list[Array] = []
        asked: dict[tuple[int, int], list[_Question]] = {}
        for w in range(len(problem.widths)):
            longest = self._longest(kind, w)
            closed = ~_inside(problem, self.reach[kind][w], longest)
            flights = np.arange(1, int(grid.most[w].max()) + 1)
            workspace = _workspace(problem, longest)
            if (closed | (self._spare(kind, w, flights[-1:]) >= workspace)).all():  # the most in flight fits everywhere
                tables.append(np.where(closed, IMPOSSIBLE, 0)[None])
                continue
            spare = self._spare(kind, w, flights)
            fits = ~closed & (spare >= workspace)
            tables.append(np.where(fits, 0, IMPOSSIBLE))
            tight = ~closed & ~fits & (spare >= workspace - flights[:, None, None] * _most_saved(problem, longest))
            for start, j in np.argwhere(tight.any(axis=0)):
                rows = np.flatnonzero(tight[:, start, j])
                asked.setdefault((int(start), int(j)), []).append(
                    _Question(w, rows, flights[rows], spare[rows, start, j])
                )
        for (start, j), questions in asked.items():
            self._ask(kind, start, j, questions, tables)
        return [table[:1].copy() if (table == table[:1]).all() else table for table in tables]

    def _ask(self, kind: int, start: int, j: int, questions: list["_Question"], tables: list[Array]) -> None:
        flights = np.concatenate([question.flights for question in questions])
        spare = np.concatenate([question.spare for question in questions])
        known = self._problem.recomputations[kind]
        if known.crowded(start, start + j + 1):
            floor = known.rough(start, start + j + 1, flights, spare)
            self.exact = self.exact and not floor.any()
        else:
            floor, cost = known.least(start, start + j + 1, flights, spare)
            self.exact = self.exact and bool((floor == cost).all())
        edges = np.cumsum([len(question.rows) for question in questions])[:-1]
        for question, part in zip(questions, np.split(floor, edges), strict=True):
            tables[question.width][question.rows, start, j] = part


@dataclass(frozen=True)
class _Question:
    """One span at one width: which rows of its table are open, with the k and the spare bytes of each."""

    width: int
    rows: NDArray[np.intp]
    flights: Array
    spare: Array


def best_before(problem: ChainAllocation) -> Array:
    """Least work of one micro-batch on all layers before each boundary, shape (n + 1,)."""
    best = (problem.forward + problem.backward).min(axis=0)
    return np.insert(np.cumsum(best), 0, 0)


def _inside(problem: ChainAllocation, reach: Array, longest: int) -> NDArray[np.bool_]:
    """Spans that end within their reach, at an allowed cut or at n: shape (n, longest)."""
    ends = np.arange(problem.layers)[:, None] + 1 + np.arange(longest)
    allowed = np.append(problem.cuts, True)[np.minimum(ends, problem.layers) - 1]
    inside: NDArray[np.bool_] = (ends <= reach[:, None]) & allowed
    return inside


def _workspace(problem: ChainAllocation, longest: int) -> Array:
    """The largest workspace of each span, shape (n, longest)."""
    padded = np.append(problem.workspace, np.zeros(longest, np.int64))
    rows = np.lib.stride_tricks.sliding_window_view(padded, longest)[: problem.layers]
    return np.maximum.accumulate(rows, axis=1)


def _most_saved(problem: ChainAllocation, longest: int) -> Array:
    """Bytes that recomputing all of a span saves for each micro-batch in flight, shape (n, longest)."""
    n = problem.layers
    useful = problem.recomputable & (problem.saved > problem.output)
    savings = np.insert(np.cumsum(np.where(useful, problem.saved - problem.output, 0)), 0, 0)
    ends = np.minimum(np.arange(n)[:, None] + 1 + np.arange(longest), n)
    saved: Array = savings[ends] - savings[:-1, None]
    return saved


def _last_that_may_fit(problem: ChainAllocation, kind: int, width: int) -> Array:
    """The last end of a span from each start of which one micro-batch may fit with everything recomputed."""
    n = problem.layers
    held = np.minimum(problem.saved, np.where(problem.recomputable, problem.output, problem.saved))
    stays = np.insert(np.cumsum(problem.resident[kind, width] + held), 0, 0)
    room = problem.limit[kind] - np.insert(problem.received, 0, 0)
    return np.asarray(np.searchsorted(stays, stays[:n] + room, side="right") - 1)
