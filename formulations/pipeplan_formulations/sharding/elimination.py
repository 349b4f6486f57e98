"""Elimination of operators one by one, from a graph with a table for every operator and edge.

::

    u ─── w ─── v   + (u, v)     tables of w: (w), (u, w), (w, v)      ──▶      u ═══ v      a new table (u, v): for
                                 joined, then united over w's classes                        each pair, what w adds

An operator of degree d leaves a table of its d neighbours. Leaves, series and parallel edges are the cases of degree 1
and 2; the general case covers branches. The next operator is the one whose neighbours lack the fewest edges among each
other (min-fill), then the one with the fewest pairs of points.

A table is not bound to operators, and equal joins are done once. So equal blocks of a graph are eliminated once, and
the operators between them pairwise, which doubles the number of blocks at each step.

No join stores where its points come from. `unwind` finds this again for the one point that is asked for: it goes back
through the joins, and looks for the signature and the points that give the point known.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from pipeplan_formulations.sharding.classes import classes
from pipeplan_formulations.sharding.instance import Array, Choice, Sharding

WIDEST = 2**24
"""Largest number of cells that one elimination goes through."""


class TooLargeError(Exception):
    """The graph has too many entangled operators: a table would exceed `WIDEST` cells."""


class CostTable(Protocol):
    """Sets of points over the classes of some operators; see `scalars.ScalarTable`."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def size(self) -> float: ...

    @property
    def slack(self) -> Array: ...

    def at(self, cell: tuple[int, ...]) -> Array: ...


Table = TypeVar("Table", bound=CostTable)


class Algebra(Protocol[Table]):
    """Tables and their joins; see `scalars.Scalars`."""

    def table(self, costs: Array) -> Table: ...

    def classes(self, costs: Array, class_of: Array, count: int) -> Table: ...

    def combine(self, tables: Sequence[Table], axes: Sequence[tuple[int, ...]], shape: tuple[int, ...]) -> Table: ...

    def split(
        self, tables: Sequence[Table], cells: Sequence[Sequence[tuple[int, ...]]], target: Array
    ) -> tuple[int, list[Array]]: ...


class Factor(NamedTuple, Generic[Table]):
    """A table over the classes of some operators, in ascending order, and how many others were eliminated for it."""

    scope: tuple[int, ...]
    table: Table
    inside: int


class Step(NamedTuple):
    """An elimination: the operator (−1 if none), the factors that were joined, the factor that came out."""

    operator: int
    sources: list[int]
    result: int


class Elimination(Generic[Table]):
    """State of the elimination of a problem's operators.

    Parameters
    ----------
    problem : Sharding
    algebra : Algebra
    keep : sequence of int
        Operators that stay, with all their signatures.

    Attributes
    ----------
    operators : set of int
        Those that are neither eliminated nor kept.
    """

    def __init__(self, problem: Sharding, algebra: Algebra[Table], keep: Sequence[int] = ()) -> None:
        self._problem, self._algebra, self._keep = problem, algebra, tuple(sorted(keep))
        self._arrays: dict[tuple[object, ...], Array] = {}
        self._tables: dict[tuple[object, ...], Table] = {}
        self._factors: list[Factor[Table]] = []
        self._steps: list[Step] = []
        self.operators = set(range(len(problem.costs))) - {*keep}
        self._at: list[set[int]] = [set() for _ in problem.costs]
        self._live: set[int] = set()
        self._class_of = self._classes()
        self._load()
        self._score = {v: self._priority(v) for v in self.operators}

    def _one(self, costs: Array) -> Array:
        """The same array for equal contents."""
        return self._arrays.setdefault((costs.shape, costs.tobytes()), costs)

    def _classes(self) -> list[Array]:
        """Class of each signature of each operator; operators to keep have one class per signature."""
        sides: list[list[Array]] = [[] for _ in self._problem.costs]
        for u, v, costs in self._problem.edges:
            sides[u].append(self._one(costs))
            sides[v].append(self._one(costs.transpose(1, 0, 2)))
        found: dict[tuple[int, ...], Array] = {}
        class_of = []
        for v, costs in enumerate(self._problem.costs):
            own = self._one(costs)
            key = (id(own), *map(id, sides[v]))
            if v not in self._keep and key not in found:
                found[key] = classes(own, sides[v])
            class_of.append(np.arange(len(own)) if v in self._keep else found[key])
        return class_of

    def _load(self) -> None:
        """Make the tables of all operators, then of all edges, by classes; factor v is that of operator v."""
        firsts = []
        for v, (costs, class_of) in enumerate(zip(self._problem.costs, self._class_of, strict=True)):
            count = max(1, int(class_of.max()) + 1)
            firsts.append([int((class_of == c).argmax()) for c in range(count)])
            own = self._one(costs), self._one(class_of), count
            self._add((v,), (id(own[0]), id(own[1])), partial(self._algebra.classes, *own))
        for u, v, costs in self._problem.edges:
            table = self._one(np.ascontiguousarray(costs[np.ix_(firsts[u], firsts[v])]))
            if u < v:
                self._add((u, v), (id(table),), partial(self._algebra.table, table))
            else:
                self._add((v, u), (id(table), "back"), partial(self._algebra.table, table.transpose(1, 0, 2)))

    def _add(self, scope: tuple[int, ...], key: tuple[object, ...], make: Callable[[], Table], inside: int = 0) -> int:
        """Add a factor, whose table is made unless an equal one is known; return its number."""
        if key not in self._tables:
            self._tables[key] = make()
        number = len(self._factors)
        self._factors.append(Factor(scope, self._tables[key], inside))
        self._live.add(number)
        for v in scope:
            self._at[v].add(number)
        return number

    def _beside(self, v: int) -> set[int]:
        """Operators that share a table with v."""
        return {u for number in self._at[v] for u in self._factors[number].scope} - {v}

    def _count(self, v: int) -> int:
        """Number of classes of v."""
        return self._factors[v].table.shape[0]

    def _priority(self, v: int) -> tuple[bool, int, float, int, int]:
        """Rank among the operators to eliminate; the least one is next. First: True if its table is too large.

        Of equal ones, those between tables of few operators are first, so that equal blocks are joined pairwise.
        """
        beside = self._beside(v)
        cells = math.prod(map(self._count, (v, *beside)))
        fill = sum(not self._at[a] & self._at[b] for a, b in combinations(beside, 2))
        work = cells * math.prod(self._factors[number].table.size for number in self._at[v])
        return cells > WIDEST, fill, work, sum(self._factors[number].inside for number in self._at[v]), v

    def run(self, degree: int | None = None) -> None:
        """Eliminate all operators, or those of at most this degree, as long as there are any.

        Raises
        ------
        TooLargeError
            Before a table would exceed `WIDEST`.
        """
        while ranks := [
            rank
            for v, rank in self._score.items()
            if degree is None or (len(self._beside(v)) <= degree and not rank[0])
        ]:
            large, *_, v = min(ranks)
            if large:
                raise TooLargeError
            beside = self._beside(v)
            self._join(v, tuple(sorted(beside)), sorted(self._at[v]))
            self.operators.remove(v)
            del self._score[v]
            touched = beside.union(*map(self._beside, beside)) & self.operators
            self._score.update({u: self._priority(u) for u in touched})

    def result(self) -> Table:
        """Table over the operators to keep, once all others are eliminated."""
        self._join(-1, self._keep, sorted(self._live))
        return self._factors[-1].table

    def _join(self, operator: int, scope: tuple[int, ...], sources: list[int]) -> None:
        """Replace the factors by their join without the operator; if it is −1, by their plain join."""
        axis = {v: i for i, v in enumerate((*scope, operator))}
        tables = [self._factors[number].table for number in sources]
        axes = [tuple(axis[v] for v in self._factors[number].scope) for number in sources]
        shape = (*map(self._count, scope), 1 if operator < 0 else self._count(operator))
        for number in sources:
            self._live.remove(number)
            for v in self._factors[number].scope:
                self._at[v].remove(number)
        key = (*map(id, tables), *axes, shape)
        inside = 1 + sum(self._factors[number].inside for number in sources)
        result = self._add(scope, key, partial(self._algebra.combine, tables, axes, shape), inside)
        self._steps.append(Step(operator, sources, result))

    @property
    def live(self) -> dict[int, Factor[Table]]:
        """Factors that are left, by number."""
        return {number: self._factors[number] for number in sorted(self._live)}

    def unwind(self, class_of: Mapping[int, int], points: Mapping[int, Array]) -> Choice:
        """Signature of every operator.

        Parameters
        ----------
        class_of : mapping
            Class of each operator that is left.
        points : mapping
            For each factor in `live`, its point that is part of the solution.
        """
        chosen, part = dict(class_of), dict(points)
        for operator, sources, result in reversed(self._steps):
            scopes = [self._factors[number].scope for number in sources]
            options = range(1 if operator < 0 else self._count(operator))
            cells = [[tuple(k if v == operator else chosen[v] for v in scope) for scope in scopes] for k in options]
            tables = [self._factors[number].table for number in sources]
            k, own = self._algebra.split(tables, cells, part[result])
            part.update(zip(sources, own, strict=True))
            if operator >= 0:
                chosen[operator] = k
        return tuple(
            int(np.flatnonzero((self._class_of[v] == chosen[v]) & (costs == part[v]).all(axis=1))[0])
            for v, costs in enumerate(self._problem.costs)
        )
