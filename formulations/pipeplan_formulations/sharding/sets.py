"""Tables of Pareto sets: the algebra of elimination for several coordinates.

::

    cell 0      cell 1   cell 2            shape = number of signatures of each operator in the scope
    ├──────────┼────────┼─────             starts = (0, 3, 5, 6): cell c has points[starts[c]:starts[c + 1]]
    p p p       p p      p                 of shape (D,) each, in lexicographic order

Two tables are joined cell by cell: every point of one with every point of the other, then the union over the signatures
of the operator that is eliminated, then dominance. Most of these pairs need not be formed. Points are cut into short
*runs*, with the least of every coordinate. A run, moved by a point of the other table, is left out if one of a few
*guards* dominates that least point. The guards of a cell are points of the result: the optima for some weights. Sets of
two coordinates that do not fill runs have none: all pairs are formed and sorted, which is faster.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations
from operator import add, itemgetter, le, sub
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.pareto import front, undominated
from pipeplan_formulations.sharding.instance import Array, possible
from pipeplan_formulations.sharding.scalars import aligned


class Bound(Protocol):
    """What excludes points of a table."""

    def kept(self, begin: int, points: Array, cells: Array) -> NDArray[np.intp]:
        """Return the indices of the points to keep; their cells count from ``begin``."""
        ...


Point = tuple[int, ...]
RUN = 16
"""Largest number of points of a run."""
PAIRS = 2**20
"""Approximate number of pairs of points that are formed at once."""
UNGUARDED = 2000
"""Pairs of points of a join up to which all are formed and compared."""
FEW = 100
"""Mean number of points of a cell below which sets of two coordinates are filtered all at once."""


@dataclass(frozen=True, eq=False)
class SetTable:
    """A Pareto set for each cell; see the module's docstring.

    Attributes
    ----------
    shape : tuple of int
    starts : array, shape (cells + 1,)
    points : array, shape (P, D)
    """

    shape: tuple[int, ...]
    starts: Array
    points: Array

    @cached_property
    def counts(self) -> Array:
        """Number of points of each cell."""
        return np.diff(self.starts)

    @property
    def size(self) -> float:
        """Mean number of points of a cell, where there is no point a little more than 0."""
        return max(1, len(self.points)) / len(self.counts)

    def listed(self, cell: tuple[int, ...]) -> dict[Point, None]:
        """The points of a cell as tuples, in order."""
        if cell not in self._listed:
            self._listed[cell] = dict.fromkeys(map(tuple, self.at(cell).tolist()))
        return self._listed[cell]

    @cached_property
    def _listed(self) -> dict[tuple[int, ...], dict[Point, None]]:
        return {}

    def at(self, cell: tuple[int, ...]) -> Array:
        """The points of a cell, of shape (P, D)."""
        number = int(np.ravel_multi_index(cell, self.shape)) if cell else 0
        return self.points[self.starts[number] : self.starts[number + 1]]


class Sets:
    """Joins of tables of Pareto sets.

    Parameters
    ----------
    clock : Clock
    coordinates, maxima : int
        As in `Sharding`.
    """

    def __init__(self, clock: Clock, coordinates: int, maxima: int) -> None:
        self._clock, self._sums = clock, coordinates - maxima
        self._nothing, self._zero = np.zeros(coordinates, np.int64), (0,) * coordinates
        self.unit = SetTable((), np.array([0, 1]), self._nothing[None])
        random = np.random.default_rng(0)
        directions = random.dirichlet(np.full(coordinates, 0.7), 6 * coordinates)
        self._directions = np.concatenate([np.eye(coordinates) + 1e-6, directions])

    def table(self, costs: Array) -> SetTable:
        """Table of an edge's costs, of shape (…, D)."""
        mask = possible(costs)
        return SetTable(mask.shape, _starts(mask.ravel().astype(np.int64)), costs[mask])

    def classes(self, costs: Array, class_of: Array, count: int) -> SetTable:
        """Table of an operator whose signatures form classes; −1 stands for none."""
        sets = [front(costs[(class_of == c) & possible(costs)]) for c in range(count)]
        return SetTable((count,), _starts(np.array(list(map(len, sets)), np.int64)), np.concatenate(sets))

    def combine(self, tables: Sequence[SetTable], axes: Sequence[tuple[int, ...]], shape: tuple[int, ...]) -> SetTable:
        """Join the tables over all cells of ``shape``, then unite the sets along its last axis; see `Scalars`."""
        parts = list(zip(tables, axes, strict=True))
        while len(parts) > 2:
            i, j = cheapest(parts, shape)
            (second, two), (first, one) = parts.pop(j), parts.pop(i)
            scope = tuple(sorted({*one, *two}))
            own = [tuple(map(scope.index, part)) for part in (one, two)]
            parts.append((self.join(first, second, own, (*(shape[axis] for axis in scope), 1)), scope))
        parts += [(self.unit, ())] * (2 - len(parts))
        return self.join(parts[0][0], parts[1][0], [part[1] for part in parts], shape)

    def split(
        self, tables: Sequence[SetTable], cells: Sequence[Sequence[tuple[int, ...]]], target: Array
    ) -> tuple[int, list[Array]]:
        """The class that gives ``target``, and its point in each table; ``cells[k]`` has the cell in each."""
        order, aim = sorted(range(len(tables)), key=lambda i: tables[i].size), tuple(target.tolist())
        for k, row in enumerate(cells):
            found = self._picked([tables[i].listed(row[i]) for i in order], self._zero, aim)
            if found is not None:
                return k, [np.array(point) for _, point in sorted(zip(order, found, strict=True), key=itemgetter(0))]
        raise AssertionError("every point comes from some class")

    def _picked(self, sets: Sequence[dict[Point, None]], total: Point, target: Point) -> list[Point] | None:
        """One point of each set that give ``target`` together with ``total``; None if there are none."""
        if len(sets) == 1 and self._sums == len(target):
            rest = tuple(map(sub, target, total))
            return [rest] if rest in sets[0] else None
        for point in sets[0]:
            both = self._plus(total, point)
            if len(sets) == 1:
                if both == target:
                    return [point]
            elif all(map(le, both, target)):
                found = self._picked(sets[1:], both, target)
                if found is not None:
                    return [point, *found]
        return None

    def _plus(self, one: Point, two: Point) -> Point:
        """Points of two parts together: sums, then maxima."""
        many = self._sums
        return (*map(add, one[:many], two[:many]), *map(max, one[many:], two[many:]))

    def _added(self, first: Array, second: Array) -> Array:
        """Points of two parts together: sums, then maxima."""
        sums = first[..., : self._sums] + second[..., : self._sums]
        return np.concatenate([sums, np.maximum(first[..., self._sums :], second[..., self._sums :])], axis=-1)

    def join(
        self,
        first: SetTable,
        second: SetTable,
        axes: Sequence[tuple[int, ...]],
        shape: tuple[int, ...],
        bound: Bound | None = None,
    ) -> SetTable:
        """`combine` of two tables; with a bound, without what it excludes."""
        if first.size < second.size:
            first, second, axes = second, first, axes[::-1]
        # cells[i]: for every cell of the result and every signature that is eliminated, the cell of table i
        cells = [
            np.broadcast_to(aligned(np.arange(len(t.counts)).reshape(t.shape), own, len(shape)), shape)
            for t, own in zip((first, second), axes, strict=True)
        ]
        one, two = (each.reshape(-1, shape[-1]) for each in cells)
        pairs = np.cumsum((first.counts[one] * second.counts[two]).sum(axis=1))
        runs = _Runs(first)
        guarded = bound is None and pairs[-1:].sum() > UNGUARDED and (len(self._nothing) > 2 or first.size >= RUN)
        guards = _Guards(self._directions, first, second) if guarded else None
        found: list[Array] = []
        counts: list[Array] = []
        begin = 0
        while begin < len(one):
            self._clock.check()
            done = int(pairs[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(pairs, done + PAIRS)))
            within = None if bound is None else partial(bound.kept, begin)
            points, cell = self._united(first, second, one[begin:end], two[begin:end], runs, guards, within)
            found.append(points)
            counts.append(np.bincount(cell, minlength=min(end, len(one)) - begin))
            begin = end
        return SetTable(shape[:-1], _starts(np.concatenate(counts)), np.concatenate(found))

    def _united(
        self,
        first: SetTable,
        second: SetTable,
        one: Array,
        two: Array,
        runs: "_Runs",
        guards: "_Guards | None",
        within: Callable[[Array, Array], NDArray[np.intp]] | None,
    ) -> tuple[Array, Array]:
        """Pareto sets of some cells, and the cell of each point; ``one`` and ``two`` have the pairs that are united.

        ``within(points, cells)``: indices of those to keep.
        """
        count, width = one.shape
        best = None if guards is None else self._added(*guards.of(one, two))
        one, two = one.ravel(), two.ravel()
        # Rows: a run of the first table, moved by a point of the second.
        pair, number = _expanded(runs.counts[one] * second.counts[two])
        run = runs.first[one[pair]] + number % runs.counts[one[pair]]
        moved = second.points[second.starts[two[pair]] + number // runs.counts[one[pair]]]
        least = self._added(runs.least[run], moved)
        kept = np.arange(len(pair))
        if within is not None:
            kept = within(least, pair // width)
        elif best is not None:
            kept = _unguarded(least, best, pair // width)
        pair, run, moved = pair[kept], run[kept], moved[kept]
        # Points of the rows that are left.
        row, number = _expanded(runs.lengths[run])
        points = self._added(first.points[runs.starts[run][row] + number], moved[row])
        cell = pair[row] // width
        if within is not None:
            kept = within(points, cell)
            points, cell = points[kept], cell[kept]
        elif best is not None and points.shape[1] > 2:
            kept = _unguarded(points, best, cell)
            points, cell = points[kept], cell[kept]
        if points.shape[1] == 2 and len(points) < FEW * count:
            kept = undominated(cell, points[:, 0], points[:, 1])
            return points[kept], cell[kept]
        ends = np.searchsorted(cell, np.arange(count + 1))
        sets = [
            front(points[a:b], self._clock.check) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
        ]
        return np.concatenate(sets), np.repeat(np.arange(count), list(map(len, sets)))


def cheapest(parts: Sequence[tuple[SetTable, tuple[int, ...]]], shape: tuple[int, ...]) -> tuple[int, int]:
    """Numbers of the two parts, tables with their axes, whose join is expected to have the fewest points."""

    def points(pair: tuple[int, int]) -> float:
        (first, one), (second, two) = (parts[i] for i in pair)
        return math.prod(shape[axis] for axis in {*one, *two}) * first.size * second.size

    return min(combinations(range(len(parts)), 2), key=points)


class _Runs:
    """Runs of a table's points: the first run and the number of runs of each cell; begin, length, least of a run."""

    def __init__(self, table: SetTable) -> None:
        self.counts = -(-table.counts // RUN)
        self.first = _starts(self.counts)[:-1]
        cell, number = _expanded(self.counts)
        self.starts = table.starts[cell] + RUN * number
        self.lengths = np.minimum(table.counts[cell] - RUN * number, RUN)
        self.least = np.minimum.reduceat(table.points, self.starts) if len(self.starts) else table.points


class _Guards:
    """For each direction and cell of two tables, the point of least weighted sum, and that sum."""

    def __init__(self, directions: NDArray[np.float64], first: SetTable, second: SetTable) -> None:
        spread = [np.ptp(t.points, axis=0) if len(t.points) else np.zeros(t.points.shape[1]) for t in (first, second)]
        weights = directions / np.maximum(np.maximum(*spread), 1)
        self._best = [_optima(table, weights) for table in (first, second)]

    def of(self, one: Array, two: Array) -> tuple[Array, Array]:
        """For some cells, with the pairs of each, the points of both tables whose sum is best; (cells, directions, D).

        Where there is none, it is a point so large that it dominates nothing.
        """
        (points, sums), (others, more) = self._best
        found = []
        for direction in range(len(sums)):
            pair = (sums[direction][one] + more[direction][two]).argmin(axis=1)[:, None]
            a, b = np.take_along_axis(one, pair, 1)[:, 0], np.take_along_axis(two, pair, 1)[:, 0]
            found.append((points[direction][a], others[direction][b]))
        return np.stack([a for a, _ in found], axis=1), np.stack([b for _, b in found], axis=1)


def _optima(table: SetTable, weights: NDArray[np.float64]) -> tuple[list[Array], list[NDArray[np.float64]]]:
    """Points of least weighted sum in each cell for each row of weights, and the sums; huge in empty cells."""
    points, sums = [], []
    filled = np.flatnonzero(table.counts)
    cell = np.repeat(np.arange(len(table.counts)), table.counts)
    for row in weights:
        value = table.points @ row
        least = np.full(len(table.counts), np.inf)
        best = np.full((len(table.counts), table.points.shape[1]), 2**61)
        if len(filled):
            least[filled] = np.minimum.reduceat(value, table.starts[filled])
            places = np.flatnonzero(value == least[cell])
            best[cell[places]] = table.points[places]
        points.append(best)
        sums.append(least)
    return points, sums


def _unguarded(points: Array, guards: Array, cell: Array) -> NDArray[np.intp]:
    """Indices of the points that no guard of their cell dominates, except points that equal it."""
    left = np.arange(len(points))
    for direction in range(guards.shape[1]):
        guard, here = guards[:, direction], points[left]
        own = cell[left]
        above, equal = np.ones(len(left), np.bool_), np.ones(len(left), np.bool_)
        for d in range(points.shape[1]):
            other = guard[own, d]
            above &= here[:, d] >= other
            equal &= here[:, d] == other
        left = left[~above | equal]
    return left


def _expanded(counts: Array) -> tuple[Array, Array]:
    """For each of ``counts[i]`` copies of i: i, and the number of the copy."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(_starts(counts)[:-1], counts)


def _starts(counts: Array) -> Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
