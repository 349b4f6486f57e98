"""Objective 'step' without (6): is there a partition with T ≤ target? Labels over (stage, boundary), by bisection.

With a target, (4) is a test of one stage: H_s + M w_s ≤ target. What a prefix of stages leaves to the rest is two
numbers, its H (smaller is better) and the largest delay e so far (smaller is better), because (5) compares R, known at
the end only, with the largest e. So each boundary holds a Pareto set of labels (H, e):

::

    e │ ×                       × kept, nothing lies left of and below it
      │    ×     ·              · dominated
      │       ×       ·
      └─────────────────── H

Looking back from the end tells, for each boundary, the largest H that can still succeed, the least and the most that R
can still grow, and the least e that the stages to come have anyway. A label beyond the first is dropped, and so is one
whose e is too much even for the least R. An e below the one that comes anyway counts as that one, and so does an e that
is harmless even for the most R. Balanced stages have nearly the same e, so few labels a boundary are left.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.partition.problem import Array, Boundaries, ChainPartition
from pipeplan_formulations.partition.search import Bracket, least
from pipeplan_formulations.partition.spans import NEVER, Spans, spans
from pipeplan_formulations.partition.windows import Flags

BEAM = 12
"""Labels a boundary in the quick attempt that goes before each exhaustive one."""


def solve_step(problem: ChainPartition, last: Array, open_: Flags, bracket: Bracket) -> None:
    """Close the bracket for the problem without (6). Some partition must keep (1)."""
    target = max(1, bracket.low) if bracket.high is None else bracket.high
    while True:
        tables = _tables(problem, last, open_, target)
        view = _look_back(tables, problem, target, bracket)
        if view.possible:
            break
        bracket.raise_low(target + 1)
        target *= 2
    bracket.offer(view.follow(tables))

    def relaxed(limit: int) -> bool:
        view = _look_back(tables, problem, limit, bracket)
        if view.possible:
            bracket.offer(view.follow(tables))
        return view.possible

    bracket.raise_low(least(bracket.low, target, relaxed, bracket.clock))
    assert bracket.high is not None
    tables = _tables(problem, last, open_, bracket.high)
    target, failures = bracket.low, 0
    while not bracket.closed:
        found = _labels(tables, problem, target, bracket, BEAM) or _labels(tables, problem, target, bracket)
        if found is None:
            bracket.raise_low(target + 1)
            failures += 1
        else:
            bracket.offer(found)
            failures = 0
        # Two failures in a row suggest that the incumbent is optimal; one test just below it then proves that.
        target = bracket.high - 1 if failures == 2 else (bracket.low + bracket.high - 1) // 2


@dataclass(frozen=True)
class _View:
    """What the end tells each boundary. Rows are stages 0 … S, columns boundaries 0 … n.

    ``cap``: largest H that may still succeed. ``near``, ``far``: least and most that R can still grow.
    ``worst``: least e that the stages to come can have as their largest.
    ``caps``: for each stage and span, the largest H before it that may still succeed through it.
    """

    cap: Array
    near: Array
    far: Array
    worst: Array
    caps: list[Array]

    @property
    def possible(self) -> bool:
        return int(self.cap[0, 0]) >= 0

    def follow(self, tables: list[Spans]) -> Boundaries:
        """The partition that leaves the largest H at every boundary."""
        boundaries = [0]
        for table, caps in zip(tables, self.caps, strict=True):
            row = int(np.searchsorted(table.starts, boundaries[-1]))
            boundaries.append(int(table.ends[row, int(caps[row].argmax())]))
        return tuple(boundaries)


def _tables(problem: ChainPartition, last: Array, open_: Flags, target: int) -> list[Spans]:
    return [
        spans(problem, s, np.flatnonzero(open_[s, : problem.layers]), last, open_[s + 1], target)
        for s in range(problem.stages)
    ]


def _look_back(
    tables: list[Spans], problem: ChainPartition, target: int, bracket: Bracket, heads: Array | None = None
) -> _View:
    """(4) exactly; (5) for the largest e from a span on, with the least R. ``heads``: least H known of a boundary."""
    shape = (problem.stages + 1, problem.layers + 1)
    cap, near, far, worst = (np.full(shape, start) for start in (-NEVER, NEVER, -NEVER, NEVER))
    cap[-1, -1], near[-1, -1], far[-1, -1], worst[-1, -1] = target, 0, 0, 0
    every = []
    for s in reversed(range(problem.stages)):
        bracket.clock.check()
        table = tables[s]
        ahead = near[s + 1][table.ends]
        caps = np.minimum(target - table.update - table.work, cap[s + 1][table.ends] - table.advance)
        delay = np.maximum(table.delay, worst[s + 1][table.ends])
        np.minimum(caps, target - delay - table.advance - ahead, out=caps)
        cap[s, table.starts] = caps.max(axis=1, initial=-NEVER)  # never less, or sums would leave int64
        alive = caps >= (0 if heads is None else heads[s, table.starts][:, None])
        near[s, table.starts] = np.where(alive, table.advance + ahead, NEVER).min(axis=1, initial=NEVER)
        worst[s, table.starts] = np.where(alive, delay, NEVER).min(axis=1, initial=NEVER)
        grown = table.advance + far[s + 1][table.ends]
        far[s, table.starts] = np.where(alive, grown, -NEVER).max(axis=1, initial=-NEVER)
        every.append(caps)
    return _View(cap, near, far, worst, every[::-1])


def _least_heads(tables: list[Spans], problem: ChainPartition, view: _View) -> Array:
    """The least H at each boundary over prefixes that may still succeed; shape (S + 1, n + 1)."""
    heads = np.full((problem.stages + 1, problem.layers + 1), NEVER)
    heads[0, 0] = 0
    for s, (table, caps) in enumerate(zip(tables, view.caps, strict=True)):
        head = heads[s, table.starts][:, None]
        reached = np.where(caps >= head, head + table.advance, NEVER)
        np.minimum.at(heads[s + 1], table.ends, np.minimum(reached, NEVER))
    return heads


def _labels(
    tables: list[Spans], problem: ChainPartition, target: int, bracket: Bracket, beam: int | None = None
) -> Boundaries | None:
    """A partition with T ≤ target, or None if there is none (with at most ``beam`` labels a boundary: none found)."""
    view = _look_back(tables, problem, target, bracket)
    view = _look_back(tables, problem, target, bracket, _least_heads(tables, problem, view))
    boundary, head, delay = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)
    history: list[tuple[Array, Array]] = []
    for s, (table, caps) in enumerate(zip(tables, view.caps, strict=True)):
        bracket.clock.check()
        row = np.searchsorted(table.starts, boundary)
        label, column = np.nonzero(caps[row] >= head[:, None])
        row = row[label]
        ends = table.ends[row, column]
        heads = head[label] + table.advance[row, column]
        least = view.worst[s + 1, ends]
        delays = np.maximum(np.maximum(delay[label], table.delay[row, column]), least)
        fits = heads + view.near[s + 1, ends] + delays <= target
        label, ends, heads, delays, least = label[fits], ends[fits], heads[fits], delays[fits], least[fits]
        delays = np.where(heads + view.far[s + 1, ends] + delays <= target, least, delays)
        kept = _undominated(ends, heads, delays)
        if not len(kept):
            return None
        if beam is not None:
            kept = kept[_spread(ends[kept], beam)]
        boundary, head, delay = ends[kept], heads[kept], delays[kept]
        history.append((boundary, label[kept]))
    index, boundaries = 0, []
    for ends, parents in reversed(history):
        boundaries.append(int(ends[index]))
        index = int(parents[index])
    return (0, *reversed(boundaries))


def _undominated(groups: Array, first: Array, second: Array) -> NDArray[np.intp]:
    """Indices of the pairs (first, second) that no other pair of the same group matches in both."""
    order = np.lexsort((second, first, groups))
    _, group = np.unique(groups[order], return_inverse=True)
    _, rank = np.unique(second[order], return_inverse=True)
    # Later groups lie lower by more than any rank, so that one running minimum serves every group.
    height = rank - group * (len(order) + 1)
    lowest = np.minimum.accumulate(height)
    kept = np.ones(len(order), np.bool_)
    kept[1:] = height[1:] < lowest[:-1]
    return order[kept]


def _spread(groups: Array, most: int) -> NDArray[np.bool_]:
    """At most ``most`` members of each group, evenly spread, the first one always; groups come sorted."""
    _, first, inverse, count = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    rank, size = np.arange(len(groups)) - first[inverse], count[inverse]
    chosen: NDArray[np.bool_] = (size <= most) | (rank * most // size != (rank - 1) * most // size)
    return chosen
