"""Tables of several weighted sums at once: the algebra of elimination for bounds on frontiers.

Each cell has, for every row of weights, the least weighted sum, and the costs of a choice that has it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.sharding.elimination import Classes, Elimination
from pipeplan_formulations.sharding.instance import LARGEST, Array, possible
from pipeplan_formulations.sharding.scalars import aligned

AT_ONCE = 2**19
"""Approximate number of sums that are formed at once."""


@dataclass(frozen=True, eq=False)
class WeightedTable:
    """Least sums of each cell.

    Attributes
    ----------
    values : array, shape (L, …)
        `LARGEST` where nothing is possible.
    costs : array, shape (L, …, D)
        Those of a choice with this sum.
    size : float
        Estimated number of points of a cell's Pareto set: it grows with the operators inside.
    """

    values: Array
    costs: Array
    size: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of classes of each operator in the scope."""
        return tuple(self.values.shape[1:])

    def at(self, cell: tuple[int, ...]) -> Array:
        """The choices of a cell, of shape (L, D), or none."""
        own: tuple[int | slice, ...] = (slice(None), *cell)
        found: Array = self.costs[own]
        return found if self.values[own].max(initial=0) < LARGEST else found[:0]


class Weighted:
    """Joins of tables of weighted sums.

    Parameters
    ----------
    clock : Clock
    weights : array of int, shape (L, D)
        Not negative; weighted sums of all choices stay below `LARGEST`.
    """

    def __init__(self, clock: Clock, weights: Array) -> None:
        self._clock, self.weights = clock, weights

    def table(self, costs: Array) -> WeightedTable:
        """Table of an edge's costs, of shape (…, D)."""
        mask = possible(costs)
        plain = np.where(mask[..., None], costs, 0)
        values = np.where(mask, np.moveaxis(plain @ self.weights.T, -1, 0), LARGEST)
        return WeightedTable(values, np.repeat(plain[None], len(self.weights), axis=0))

    def classes(self, costs: Array, class_of: Array, count: int) -> WeightedTable:
        """Table of an operator whose signatures form classes; −1 stands for none."""
        own = self.table(costs)
        values = np.full((len(self.weights), count), LARGEST)
        every = np.zeros((*values.shape, costs.shape[-1]), np.int64)
        row = np.arange(len(self.weights))
        for number in range(count):
            members = np.flatnonzero(class_of == number)
            if len(members):
                best = members[own.values[:, members].argmin(axis=1)]
                values[:, number], every[:, number] = own.values[row, best], own.costs[row, best]
        return WeightedTable(values, every)

    def combine(
        self, tables: Sequence[WeightedTable], axes: Sequence[tuple[int, ...]], shape: tuple[int, ...]
    ) -> WeightedTable:
        """Join the tables over all cells of ``shape``, then take the least along its last axis; see `Scalars`."""
        found = self.beside(tables, axes, shape, tuple(range(len(shape) - 1)))
        return replace(found, size=sum(table.size for table in tables))

    def beside(
        self,
        tables: Sequence[WeightedTable],
        axes: Sequence[tuple[int, ...]],
        shape: tuple[int, ...],
        scope: tuple[int, ...],
    ) -> WeightedTable:
        """Join the tables over all cells of ``shape``, then take the least along all axes except those of ``scope``."""
        rest = tuple(axis for axis in range(len(shape)) if axis not in scope)
        place = {axis: i for i, axis in enumerate((*scope, *rest))}
        own = [tuple(place[axis] for axis in row) for row in axes]
        full = tuple(shape[axis] for axis in (*scope, *rest))
        if not scope:
            return WeightedTable(*self._least(tables, own, full, 0, slice(None)))
        step = max(1, AT_ONCE * full[0] // (math.prod(full) * len(self.weights)))
        parts = [
            self._least(tables, own, full, len(scope), slice(begin, min(begin + step, full[0])))
            for begin in range(0, full[0], step)
        ]
        if len(parts) == 1:
            return WeightedTable(*parts[0])
        values, costs = zip(*parts, strict=True)
        return WeightedTable(np.concatenate(values, axis=1), np.concatenate(costs, axis=1))

    def _least(
        self,
        tables: Sequence[WeightedTable],
        axes: Sequence[tuple[int, ...]],
        shape: tuple[int, ...],
        kept: int,
        rows: slice,
    ) -> tuple[Array, Array]:
        """Sums and costs of `beside` for some indices of the first axis; the first ``kept`` axes stay."""
        self._clock.check()
        count = len(self.weights)
        many = (rows.stop - rows.start, *shape[1:]) if kept else shape
        total = np.zeros((count, *many), np.int64)
        for table, own in zip(tables, axes, strict=True):
            part = (slice(None),) * (1 + own.index(0)) + (rows,) if kept and 0 in own else ...
            total += aligned(table.values[part], (0, *(1 + axis for axis in own)), 1 + len(shape))
            np.minimum(total, LARGEST, out=total)
        total = total.reshape(count, *many[:kept], math.prod(many[kept:]))
        best = total.argmin(axis=-1)
        # for each row of weights and cell, the index along every axis; then the costs of each table there
        first, *place = np.ogrid[(slice(count), *map(slice, many[:kept]))]
        if kept:
            place[0] = place[0] + rows.start
        place += list(np.unravel_index(best, many[kept:])) if len(many) > kept else []
        costs: Array = np.zeros((*best.shape, self.weights.shape[1]), np.int64)
        for table, own in zip(tables, axes, strict=True):
            at = np.ravel_multi_index((first, *(place[axis] for axis in own)), table.values.shape)
            costs += table.costs.reshape(-1, costs.shape[-1])[at]
        return np.take_along_axis(total, best[..., None], -1)[..., 0], costs

    def split(
        self, tables: Sequence[WeightedTable], cells: Sequence[Sequence[tuple[int, ...]]], target: Array
    ) -> tuple[int, list[Array]]:
        """Not needed: choices are not unwound."""
        raise NotImplementedError


def together(rounds: Sequence[Elimination[WeightedTable]], order: Array) -> Elimination[WeightedTable]:
    """Return the elimination of the sums of several that took the same steps; ``order``: that of all their rows."""
    tables: dict[int, WeightedTable] = {}
    for factors in zip(*(each.factors for each in rounds), strict=True):
        parts = [factor.table for factor in factors]
        if id(parts[0]) not in tables:
            values, costs = (np.concatenate([getattr(part, name) for part in parts]) for name in ("values", "costs"))
            tables[id(parts[0])] = WeightedTable(values[order], costs[order], parts[0].size)
    return rounds[0].exchanged(tables)


def optima(elimination: Elimination[WeightedTable], classes: Classes, weights: Array) -> list[Array]:
    """Return for each row of weights the choice of least weighted sum, once all operators are eliminated."""
    count, factors = len(weights), elimination.factors
    rows = np.arange(count)
    chosen: dict[int, Array] = {}
    for operator, sources, _ in reversed(elimination.steps):
        if operator < 0:
            continue
        many = np.arange(classes.counts[operator])
        total = np.zeros((count, len(many)), np.int64)
        for number in sources:
            scope, table, _ = factors[number]
            cells = tuple(many[None] if v == operator else chosen[v][:, None] for v in scope)
            total = np.minimum(total + table.values[(rows[:, None], *cells)], LARGEST)
        chosen[operator] = total.argmin(axis=1)
    found = np.zeros((count, len(classes.operators)), np.int64)
    for v, (costs, class_of) in enumerate(zip(classes.operators, classes.of, strict=True)):
        sums = np.where(possible(costs)[:, None], np.where(possible(costs)[:, None], costs, 0) @ weights.T, LARGEST)
        own = np.where(class_of[:, None] == chosen[v][None], sums, 2 * LARGEST - 1)
        found[:, v] = own.argmin(axis=0)
    return list(found)
