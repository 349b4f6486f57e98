r"""The Pareto set of two sums with bounds: parts of choices that no point of it can have are dropped early.

::

    second            q, q', …  costs of choices that are known
    │ q               k         corner: whatever none of them dominates lies below and left of some corner
    │   ·k            /         line of least weighted sum, for a row of weights w
    │ \  q'
    │   \   ·k        A part p of a choice, in a cell of a table, is completed to p + r with w · r ≥ O(w, cell). It is
    │     \    q''    kept if for some corner k, or some q: w · p + O(w, cell) ≤ w · k for all w that are looked at.
    └─────────── first

O(w, cell) is the least weighted sum of everything outside of the table. Elimination of weighted sums (`weighted`) finds
it, with the costs of a choice for each; parts completed by these make the known points dense.

*Why nothing is lost.* Let z be a point of the Pareto set, and p its part in some table. If z is known, it is a q; else
z lies below some corner k, as no known point is at most z. So w · p + O(w, cell) ≤ w · z, which is at most w · q or
w · k, for every w, and p is kept if it is formed. It is, by induction over the joins, or a point at most as large is,
whose completion is z as well.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.pareto import front
from pipeplan_formulations.sharding.elimination import Classes, Elimination
from pipeplan_formulations.sharding.hybrids import hybrid_costs
from pipeplan_formulations.sharding.instance import LARGEST, Array, Choice, Sharding
from pipeplan_formulations.sharding.sets import Sets, SetTable, cheapest
from pipeplan_formulations.sharding.weighted import Weighted, WeightedTable, optima, together

ROUNDS, MOST = 7, 32
"""Most rounds in which rows of weights are added, and most rows."""
SPREAD = (1, 64), (1, 16), (1, 4), (1, 1), (4, 1), (16, 1), (64, 1)
"""Slopes that are tried first, as multiples of that between both ends."""
LARGE = 60.0
"""Estimated number of points of a cell from which on parts are bounded."""
PRECISION = 2**20
"""Largest ratio of two weights, in units of the coordinates' ranges."""


class Known:
    """Costs of choices that are known, and the corners between them.

    Parameters
    ----------
    weights : array of int, shape (L, 2)
        The first two rows are those of single coordinates.
    optima : array of int, shape (L,)
        Least weighted sums of all choices.
    points : array of int, shape (P, 2)
        Costs of choices.
    """

    def __init__(self, weights: Array, optima: Array, points: Array) -> None:
        self.weights, self._optima = weights, optima
        self._scale = weights @ np.maximum(np.ptp(points, axis=0), 1)
        self.points = front(points)
        self._bound()

    def learn(self, points: Array) -> None:
        """Add costs of choices."""
        found = front(np.concatenate([self.points, points]))
        if len(found) != len(self.points) or (found != self.points).any():
            self.points = found
            self._bound()

    def _bound(self) -> None:
        """Group targets, which are corners and points, by the weights that bound them best; set the largest of each."""
        q = self.points
        corners = np.stack([q[1:, 0] - 1, q[:-1, 1] - 1], axis=1)
        targets = np.concatenate([q, corners])
        sums = targets @ self.weights.T  # (targets, L)
        over = (sums - self._optima) / np.maximum(self._scale, 1)
        group = over.argmin(axis=1)
        count = len(self.weights)
        self._most = np.full((count, count), -1, np.int64)  # of each group, under each row of weights
        np.maximum.at(self._most, group, sums)
        self._beside = [sorted({0, 1, i, max(i - 1, 0), min(i + 1, count - 1)}) for i in range(count)]
        self._groups = np.unique(group).tolist()

    def kept(self, points: Array, outside: Array) -> Array:
        """Indices of the points that some target allows; ``outside``, of shape (L, points): least sums beside each."""
        sums = np.minimum(self.weights @ points.T + outside, LARGEST)
        found = np.zeros(len(points), np.bool_)
        for group in self._groups:
            allowed = ~found
            for i in self._beside[group]:
                allowed &= sums[i] <= self._most[group, i]
            found |= allowed
        return np.flatnonzero(found)

    def nearest(self, points: Array, outside: Array) -> Array:
        """For each point the row of weights under which it is nearest to the optimum."""
        sums = self.weights @ points.T + outside - self._optima[:, None]
        best: Array = (sums / np.maximum(self._scale, 1)[:, None]).argmin(axis=0)
        return best


@dataclass(frozen=True, eq=False)
class Bound:
    """What is outside of a table: for each cell least weighted sums, and the costs of choices that have them.

    ``outside.shape`` is that of the table; here cells are numbered.
    """

    known: Known
    outside: WeightedTable

    @cached_property
    def values(self) -> Array:
        """Least weighted sums, of shape (L, cells)."""
        return self.outside.values.reshape(len(self.known.weights), -1)

    def kept(self, begin: int, points: Array, cells: Array) -> NDArray[np.intp]:
        """Return the indices of points that may be part of a point of the frontier; cells count from ``begin``."""
        return self.known.kept(points, self.values[:, begin + cells])

    def closed(self, table: SetTable) -> SetTable:
        """Learn the costs of a table's points, completed in the best ways; return those that may still be needed."""
        cells = np.repeat(np.arange(len(table.counts)), table.counts)
        values = self.values[:, cells]
        costs = self.outside.costs.reshape(*self.values.shape, -1)
        best, last, rows = self.known.nearest(table.points, values), len(self.known.weights) - 1, np.arange(len(cells))
        for shift in (-1, 0, 1):
            at = np.clip(best + shift, 0, last)
            fits = values[at, rows] < LARGEST
            self.known.learn(table.points[fits] + costs[at[fits], cells[fits]])
        kept = self.known.kept(table.points, values)
        starts = np.concatenate([[0], np.cumsum(np.bincount(cells[kept], minlength=len(table.counts)))])
        return SetTable(table.shape, starts, table.points[kept])


class BoundedElimination(Elimination[SetTable]):
    """Elimination of sets that drops what cannot be part of the frontier.

    Parameters
    ----------
    classes : Classes
    sets : Sets
    known : Known
    inner : Elimination of WeightedTable
        The same elimination of weighted sums, to its end.
    algebra : Weighted
    """

    def __init__(
        self,
        classes: Classes,
        sets: Sets,
        known: Known,
        inner: Elimination[WeightedTable],
        algebra: Weighted,
    ) -> None:
        self._sets, self._known, self._inner, self._weighted = sets, known, inner, algebra
        self._outside = outsides(inner, algebra)
        super().__init__(classes, sets)

    def _combined(
        self, sources: Sequence[int], axes: Sequence[tuple[int, ...]], shape: tuple[int, ...]
    ) -> tuple[tuple[object, ...], Callable[[], SetTable]]:
        number = len(self._factors)
        if number not in self._outside:
            return super()._combined(sources, axes, shape)
        tables = [self._factors[source].table for source in sources]
        sums = [self._inner.factors[source].table for source in sources]
        return ("bounded", number), partial(self._bounded, tables, sums, axes, shape, self._outside[number])

    def _bounded(
        self,
        tables: Sequence[SetTable],
        sums: Sequence[WeightedTable],
        axes: Sequence[tuple[int, ...]],
        shape: tuple[int, ...],
        outside: WeightedTable,
    ) -> SetTable:
        """`Sets.combine` with bounds on every join of two tables."""
        above = tuple(range(len(shape) - 1))
        parts, beside = list(zip(tables, axes, strict=True)), list(zip(sums, axes, strict=True))
        while len(parts) > 2:
            i, j = cheapest(parts, shape)
            (second, two), (first, one) = parts.pop(j), parts.pop(i)
            pair = beside.pop(j), beside.pop(i)
            scope = tuple(sorted({*one, *two}))
            own = [tuple(map(scope.index, part)) for part in (one, two)]
            others = [(outside, above), *beside]
            bound = Bound(
                self._known, self._weighted.beside([t for t, _ in others], [row for _, row in others], shape, scope)
            )
            joined = self._sets.join(first, second, own, (*(shape[axis] for axis in scope), 1), bound)
            parts.append((bound.closed(joined), scope))
            cells = tuple(shape[axis] for axis in scope)
            flat = [tuple(map(scope.index, row)) for _, row in pair]
            beside.append((self._weighted.combine([table for table, _ in pair], flat, (*cells, 1)), scope))
        parts += [(self._sets.unit, ())] * (2 - len(parts))
        bound = Bound(self._known, outside)
        return bound.closed(self._sets.join(parts[0][0], parts[1][0], [part[1] for part in parts], shape, bound))


def outsides(inner: Elimination[WeightedTable], algebra: Weighted) -> dict[int, WeightedTable]:
    """For each large factor that a step made, the least weighted sums of everything outside of it."""
    count, width = algebra.weights.shape
    end = inner.steps[-1].result
    nothing = WeightedTable(np.zeros((count,), np.int64), np.zeros((count, width), np.int64))
    found = {end: nothing}
    made = {step.result for step in inner.steps}
    for operator, sources, result in reversed(inner.steps):
        if result not in found:
            continue
        scope = inner.factors[result].scope
        axis = {v: i for i, v in enumerate((*scope, operator))}
        rows = [tuple(axis[v] for v in inner.factors[number].scope) for number in sources]
        tables = [inner.factors[number].table for number in sources]
        last = [
            table.shape[row.index(len(scope))] for table, row in zip(tables, rows, strict=True) if len(scope) in row
        ]
        shape = (*inner.factors[result].table.shape, *(last or [1])[:1])
        above = found[result], tuple(range(len(scope)))
        for i, number in enumerate(sources):
            if number in made and tables[i].size >= LARGE:
                others = [above, *((tables[k], rows[k]) for k in range(len(sources)) if k != i)]
                found[number] = algebra.beside([t for t, _ in others], [row for _, row in others], shape, rows[i])
    return found


def bounded_frontier(problem: Sharding, clock: Clock) -> tuple[Array, Callable[[Array], Choice]]:
    """Return the Pareto set of two sums, and what finds a choice that costs one of its points.

    Raises
    ------
    OutOfTimeError
    TooLargeError
        See `frontier.Frontiers`.
    """
    classes = Classes(problem)
    weights, inner = _sums(classes, clock)
    least = inner.factors[-1].table
    if not len(least.at(())):
        return least.at(()), lambda _: ()
    choices = np.unique(np.array(optima(inner, classes, weights)), axis=0)
    known = Known(weights, least.values, np.concatenate([least.costs, hybrid_costs(problem, list(choices))]))
    elimination = BoundedElimination(classes, Sets(clock, 2, 0), known, inner, Weighted(clock, weights))
    elimination.run(order=inner.order)
    table = elimination.result()
    [number] = elimination.live

    def unwind(point: Array) -> Choice:
        return elimination.unwind({number: point})

    return front(table.points), unwind


def _sums(classes: Classes, clock: Clock) -> tuple[Array, Elimination[WeightedTable]]:
    """Rows of weights, those of single coordinates first, then by slope; and the elimination of their sums.

    Round by round the normals of the lines through neighbouring optima are added, as long as new optima are found.
    """
    most = [LARGEST // (4 * max(int(n), 1)) for n in classes.problem.largest]
    ends = [(1, 0), (0, 1)]
    rows, every, points = ends, list[tuple[int, int]](), np.zeros((0, 2), np.int64)
    rounds: list[Elimination[WeightedTable]] = []
    for _ in range(ROUNDS):
        elimination = Elimination[WeightedTable](classes, Weighted(clock, np.array(rows, np.int64)))
        elimination.run(order=rounds[0].order if rounds else ())
        points = front(np.concatenate([points, elimination.result().at(())]))
        rounds.append(elimination)
        every += rows
        between = [
            _normal(one * (c - a), two * (b - d), most)
            for (a, b), (c, d) in pairwise(points.tolist())
            for one, two in (SPREAD if rows == ends else ((1, 1),))
        ]
        rows = [row for row in dict.fromkeys(between) if row not in every][: MOST - len(every)]
        if not rows:
            break
    weights = np.array(every, np.int64)
    order = np.array([0, 1, *sorted(range(2, len(every)), key=lambda i: weights[i, 1] / weights[i, 0])])
    return weights[order], together(rounds, order)


def _normal(right: int, down: int, most: Sequence[int]) -> tuple[int, int]:
    """Weights by which two points are nearly equal, one of which is to the right of the other, and below it."""
    scale = max(right, down) / PRECISION
    one, two = max(1, round(down / scale)), max(1, round(right / scale))
    over = max(one / most[0], two / most[1], 1.0)
    return max(1, int(one / over)), max(1, int(two / over))
