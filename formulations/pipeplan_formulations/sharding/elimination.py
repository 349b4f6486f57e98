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
from copy import copy
from functools import partial
from itertools import combinations
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

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


class Classes:
    """Classes of the signatures of a problem's operators, and its tables by classes; equal ones are the same object.

    Parameters
    ----------
    problem : Sharding

    Attributes
    ----------
    of : list of array
        Class of each signature of each operator, −1 for those that are dropped.
    counts : list of int
        Number of classes of each operator, at least 1.
    operators : list of array
        Costs of each operator's signatures.
    edges : list of (int, int, array)
        Costs of each edge by classes, from the lower operator to the higher.
    """

    def __init__(self, problem: Sharding) -> None:
        self.problem = problem
        self._arrays: dict[tuple[object, ...], Array] = {}
        self._same: dict[int, tuple[Array, Array]] = {}  # by id: an array, which is kept so, and the same one
        self.operators = [self._one(costs) for costs in problem.costs]
        turned: dict[int, Array] = {}
        sides: list[list[Array]] = [[] for _ in problem.costs]
        for u, v, costs in problem.edges:
            one = self._one(costs)
            if id(one) not in turned:
                turned[id(one)] = self._one(np.ascontiguousarray(one.transpose(1, 0, 2)))
            sides[u].append(one)
            sides[v].append(turned[id(one)])
        found: dict[tuple[int, ...], Array] = {}
        self.of: list[Array] = []
        for v, own in enumerate(self.operators):
            key = (id(own), *map(id, sides[v]))
            if key not in found:
                found[key] = self._one(classes(own, sides[v]))
            self.of.append(found[key])
        self.counts = [max(1, int(class_of.max()) + 1) for class_of in self.of]
        reduced: dict[tuple[int, int, int], Array] = {}
        self.edges: list[tuple[int, int, Array]] = []
        for u, v, costs in problem.edges:
            one, low, high = self._one(costs), min(u, v), max(u, v)
            one = one if u < v else turned[id(one)]
            key3 = id(one), id(self.of[low]), id(self.of[high])
            if key3 not in reduced:
                rows = np.ix_(self._firsts(low), self._firsts(high))
                reduced[key3] = self._one(np.ascontiguousarray(one[rows]))
            self.edges.append((low, high, reduced[key3]))

    def _one(self, costs: Array) -> Array:
        """The same array for equal contents."""
        if id(costs) not in self._same:
            self._same[id(costs)] = costs, self._arrays.setdefault((costs.shape, costs.tobytes()), costs)
        return self._same[id(costs)][1]

    def _firsts(self, v: int) -> list[int]:
        """The first signature of each class of an operator."""
        return [int((self.of[v] == c).argmax()) for c in range(self.counts[v])]


class Elimination(Generic[Table]):
    """State of the elimination of a problem's operators.

    Parameters
    ----------
    problem : Sharding or Classes
    algebra : Algebra

    Attributes
    ----------
    operators : set of int
        Those that are not eliminated.
    """

    def __init__(self, problem: Sharding | Classes, algebra: Algebra[Table]) -> None:
        self._classes = problem if isinstance(problem, Classes) else Classes(problem)
        self._algebra = algebra
        self._tables: dict[tuple[object, ...], Table] = {}
        self._factors: list[Factor[Table]] = []
        self._steps: list[Step] = []
        self._unwound: dict[tuple[Any, ...], tuple[int, list[Array]]] = {}  # choices have most of their parts in common
        self.operators = set(range(len(self._classes.of)))
        self._at: list[set[int]] = [set() for _ in self._classes.of]
        self._live: set[int] = set()
        self._score: dict[int, tuple[bool, int, float, int, int]] = {}
        self._load()

    def _load(self) -> None:
        """Make the tables of all operators, then of all edges, by classes; factor v is that of operator v."""
        own = self._classes
        for v, (costs, class_of, count) in enumerate(zip(own.operators, own.of, own.counts, strict=True)):
            self._add((v,), (id(costs), id(class_of)), partial(self._algebra.classes, costs, class_of, count))
        for u, v, costs in own.edges:
            self._add((u, v), (id(costs),), partial(self._algebra.table, costs))

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
        beside, own = self._beside(v), [self._factors[number] for number in self._at[v]]
        cells = math.prod([self._classes.counts[u] for u in (v, *beside)])
        fill = sum([self._at[a].isdisjoint(self._at[b]) for a, b in combinations(beside, 2)])
        work = cells * math.prod([factor.table.size for factor in own])
        return cells > WIDEST, fill, work, sum([factor.inside for factor in own]), v

    def run(self, order: Sequence[int] = ()) -> None:
        """Eliminate all operators, those of ``order`` first and in this order.

        Raises
        ------
        TooLargeError
            Before a table would exceed `WIDEST`.
        """
        for v in order:
            self._eliminate(v)
        self._score = {v: self._priority(v) for v in self.operators}
        while self._score:
            large, *_, v = min(self._score.values())
            if large:
                raise TooLargeError
            beside = self._eliminate(v)
            del self._score[v]
            touched = beside.union(*map(self._beside, beside)) & self.operators
            self._score.update({u: self._priority(u) for u in touched})

    def _eliminate(self, v: int) -> set[int]:
        """Join the tables of an operator over its classes; return its neighbours."""
        beside = self._beside(v)
        self._join(v, tuple(sorted(beside)), sorted(self._at[v]))
        self.operators.remove(v)
        return beside

    def result(self) -> Table:
        """Table of the whole problem, once all operators are eliminated."""
        self._join(-1, (), sorted(self._live))
        return self._factors[-1].table

    def _join(self, operator: int, scope: tuple[int, ...], sources: list[int]) -> None:
        """Replace the factors by their join without the operator; if it is −1, by their plain join."""
        axis = {v: i for i, v in enumerate((*scope, operator))}
        axes = [tuple(axis[v] for v in self._factors[number].scope) for number in sources]
        shape = (*map(self._count, scope), 1 if operator < 0 else self._count(operator))
        for number in sources:
            self._live.remove(number)
            for v in self._factors[number].scope:
                self._at[v].remove(number)
        key, make = self._combined(sources, axes, shape)
        inside = 1 + sum(self._factors[number].inside for number in sources)
        result = self._add(scope, key, make, inside)
        self._steps.append(Step(operator, sources, result))

    def _combined(
        self, sources: Sequence[int], axes: Sequence[tuple[int, ...]], shape: tuple[int, ...]
    ) -> tuple[tuple[object, ...], Callable[[], Table]]:
        """Key of the join of some factors, equal for equal joins, and the function that makes it."""
        tables = [self._factors[number].table for number in sources]
        return (*map(id, tables), *axes, shape), partial(self._algebra.combine, tables, axes, shape)

    @property
    def steps(self) -> Sequence[Step]:
        """What was done."""
        return self._steps

    @property
    def order(self) -> tuple[int, ...]:
        """Operators that were eliminated, the first one first."""
        return tuple(step.operator for step in self._steps if step.operator >= 0)

    def exchanged(self, tables: Mapping[int, Table]) -> "Elimination[Table]":
        """Return the same elimination with other tables; each is found by the id of the one that it replaces."""
        other = copy(self)
        other._factors = [factor._replace(table=tables[id(factor.table)]) for factor in self._factors]
        other._unwound = {}
        return other

    @property
    def factors(self) -> Sequence[Factor[Table]]:
        """All factors, by number: those of operators, those of edges, and those that came out of steps."""
        return self._factors

    @property
    def live(self) -> dict[int, Factor[Table]]:
        """Factors that are left, by number."""
        return {number: self._factors[number] for number in sorted(self._live)}

    def unwind(self, points: Mapping[int, Array]) -> Choice:
        """Signature of every operator; ``points`` has, for each factor in `live`, its point of the solution."""
        chosen, part = dict[int, int](), dict(points)
        for step in reversed(self._steps):
            key = step.result, *(chosen[v] for v in self._factors[step.result].scope), part[step.result].tobytes()
            if key not in self._unwound:
                self._unwound[key] = self._split(step, chosen, part[step.result])
            k, own = self._unwound[key]
            part.update(zip(step.sources, own, strict=True))
            if step.operator >= 0:
                chosen[step.operator] = k
        return tuple(self._signature(v, chosen[v], part[v]) for v in range(len(self._classes.operators)))

    def _split(self, step: Step, chosen: Mapping[int, int], target: Array) -> tuple[int, list[Array]]:
        """The class of the operator that a step eliminated, and the points of its sources, that give ``target``."""
        scopes = [self._factors[number].scope for number in step.sources]
        options = range(1 if step.operator < 0 else self._count(step.operator))
        cells = [[tuple(k if v == step.operator else chosen[v] for v in scope) for scope in scopes] for k in options]
        return self._algebra.split([self._factors[number].table for number in step.sources], cells, target)

    def _signature(self, operator: int, own: int, costs: Array) -> int:
        """The signature of an operator in a class that has these costs."""
        key = -1 - operator, own, costs.tobytes()
        if key not in self._unwound:
            alike = (self._classes.operators[operator] == costs).all(axis=1)
            self._unwound[key] = int(np.flatnonzero((self._classes.of[operator] == own) & alike)[0]), []
        return self._unwound[key][0]
