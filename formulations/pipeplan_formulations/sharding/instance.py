r"""Problem definition of operator sharding: one signature per operator of a graph.

A *signature* says how an operator is split over a team of devices. An edge passes a tensor from one operator to
another, and redistributes it where their signatures lay it out differently, forward and backward.

::

    operators     qkv ─────▶ attention ─────▶ proj         each has K_v signatures with costs a_v[k]
                      [s, t]           [s, t]              each edge has costs b_e[s, t], s of u and t of v

Costs have D coordinates, whose meaning belongs to the caller: time, bytes that stay, workspace. A choice x of one
signature per operator costs

::

    sums     c_d(x) = Σ_v a_v[x_v, d] + Σ_{e = (u, v)} b_e[x_u, x_v, d]              d < D − maxima
    maxima   c_d(x) = max(max_v a_v[x_v, d], max_{e = (u, v)} b_e[x_u, x_v, d])      the last ``maxima`` coordinates

`frontier` asks for all choices that no other one dominates. `WeightedSharding` asks for one:

::

    weighted sum   minimise w · c(x)                                                 w_d = 0 for maxima
    caps           subject to g · c(x) ≤ limit, for each cap (g, limit)

As a linear programme, with x_vk = 1 if operator v has signature k, and z_est the flow on edge e:

::

    Σ_k x_vk = 1
    Σ_t z_est = x_us,  Σ_s z_est = x_vt,  z ≥ 0
    sums with x and z;  c_d ≥ Σ_k a_v[k, d] x_vk and c_d ≥ Σ_st b_e[s, t, d] z_est for maxima

==================  =============================================================
of                  functions
==================  =============================================================
sums, maxima        `Sharding.evaluate`; of sets of points `sets.Sets.combine`
weighted sum, caps  `WeightedSharding.evaluate`
linear programme    `linear.linear_model`
==================  =============================================================
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.report import BeyondIntegersError
from pipeplan_formulations.common.sentinels import UNLIMITED

Array = NDArray[np.int64]
Choice = tuple[int, ...]
"""Signature of each operator."""

LARGEST = UNLIMITED // 2
"""Sums stay below this number, so that two of them fit into int64."""


class Edge(NamedTuple):
    """A tensor that passes from ``source`` to ``target``; ``costs`` of shape (K_source, K_target, D)."""

    source: int
    target: int
    costs: Array


def possible(costs: Array) -> NDArray[np.bool_]:
    """Mask of the signatures, or pairs of them, that are possible: no coordinate is `UNLIMITED`."""
    return np.asarray((costs < UNLIMITED).all(axis=-1))


@dataclass(frozen=True)
class Sharding:
    """One instance of the problem; the module's docstring has its costs.

    Attributes
    ----------
    costs : tuple of array of int, shape (K_v, D)
        a of each operator. `UNLIMITED` in any coordinate marks an impossible signature.
    edges : tuple of Edge
        Between different operators; several may join the same two. `UNLIMITED` marks an impossible pair.
    maxima : int
        Number of last coordinates that are maxima.

    Raises
    ------
    ValueError
        If there are no operators, shapes disagree, a cost is negative, or an edge has no two operators.
    BeyondIntegersError
        If sums may reach `LARGEST`.
    """

    costs: tuple[Array, ...]
    edges: tuple[Edge, ...] = ()
    maxima: int = 0

    def __post_init__(self) -> None:
        if not self.costs or self.costs[0].ndim != 2:
            raise ValueError("give at least one operator, and costs of shape (signatures, coordinates) for each")
        width, count = self.coordinates, len(self.costs)
        if width < 1 or not 0 <= self.maxima <= width:
            raise ValueError(f"{self.maxima} of {width} coordinates are maxima; give 1 coordinate or more, 0 to all")
        tables: dict[str, tuple[Array, tuple[int, ...]]] = {
            f"operator {v}": (table, (len(table), width)) for v, table in enumerate(self.costs)
        }
        for number, (u, v, table) in enumerate(self.edges):
            if not (0 <= u < count and 0 <= v < count and u != v):
                raise ValueError(f"edge {number} joins {u} and {v}; operators are 0 to {count - 1}, and it needs two")
            tables[f"edge {number}"] = table, (len(self.costs[u]), len(self.costs[v]), width)
        checked = set[tuple[int, tuple[int, ...]]]()
        for name, (table, shape) in tables.items():
            if (id(table), shape) in checked:
                continue
            checked.add((id(table), shape))
            if table.shape != shape or not table.size or table.dtype != np.int64:
                raise ValueError(
                    f"{name} has costs of shape {table.shape} and {table.dtype}, expected {shape} of int64"
                )
        rows = self._rows
        if int(rows.values.min()) < 0:
            name, low = next((name, int(table.min())) for name, (table, _) in tables.items() if table.min() < 0)
            raise ValueError(f"{name} has a negative cost: {low}")
        _require_countable(self.largest)

    @property
    def coordinates(self) -> int:
        """Number of coordinates D."""
        return int(self.costs[0].shape[1])

    @property
    def sums(self) -> int:
        """Number of coordinates that are sums."""
        return self.coordinates - self.maxima

    @cached_property
    def largest(self) -> tuple[int, ...]:
        """Upper bound on each coordinate of any choice."""
        rows = self._rows
        least = np.where(possible(rows.values)[:, None], rows.values, 0)
        found = dict(zip(rows.begins, np.maximum.reduceat(least, [*rows.begins.values()]).tolist(), strict=True))
        most = [found[id(table)] for table in (*self.costs, *(edge.costs for edge in self.edges))]
        sums = [sum(column) for column in zip(*most, strict=True)]
        return (*sums[: self.sums], *(max(column) for column in list(zip(*most, strict=True))[self.sums :]))

    def parts(self, choice: Sequence[int]) -> Array:
        """Costs of every operator, then of every edge, for a choice; of shape (operators + edges, D)."""
        rows = [table[k] for table, k in zip(self.costs, choice, strict=True)]
        return np.array([*rows, *(table[choice[u], choice[v]] for u, v, table in self.edges)])

    def evaluate(self, choice: Sequence[int]) -> tuple[int, ...] | None:
        """Costs of a choice; None if it is impossible."""
        parts = self.parts(choice)
        if not possible(parts).all():
            return None
        return (*parts[:, : self.sums].sum(axis=0).tolist(), *parts[:, self.sums :].max(axis=0).tolist())

    def project(self, matrix: Array, maxima: bool = True) -> "Sharding":
        """The same operators with combined costs: ``matrix`` @ sums, then the maxima unless they are dropped.

        Fewer coordinates have far smaller frontiers. With k micro-batches in flight, a stage needs one coordinate for
        bytes that stay and bytes per micro-batch, with weights 1 and k.

        Parameters
        ----------
        matrix : array of int, shape (new coordinates, D − maxima)
            Weights, not negative.
        maxima : bool

        Raises
        ------
        ValueError
            If the shape is wrong or a weight is negative.
        BeyondIntegersError
        """
        if matrix.ndim != 2 or matrix.shape[1] != self.sums or (matrix.size and int(matrix.min()) < 0):
            raise ValueError(f"matrix has shape {matrix.shape}, expected (rows, {self.sums}), none of it negative")
        _require_countable((matrix.astype(object) @ np.array(self.largest[: self.sums], object)).tolist())
        rows, kept = self._rows, self.maxima if maxima else 0
        fits = possible(rows.values)[:, None]
        plain = np.where(fits, rows.values, 0)
        sums = plain[:, : self.sums] @ matrix.T
        every = np.concatenate([sums, plain[:, self.sums : self.sums + kept]], axis=1) if kept else sums
        new = rows.tables(np.where(fits, every, UNLIMITED))
        edges = tuple(edge._replace(costs=new[id(edge.costs)]) for edge in self.edges)
        return Sharding(tuple(new[id(costs)] for costs in self.costs), edges, kept)

    @cached_property
    def _rows(self) -> "_Rows":
        """All costs."""
        every = {id(table): table for table in (*self.costs, *(edge.costs for edge in self.edges))}
        flat = [table.reshape(-1, self.coordinates) for table in every.values()]
        begins = accumulate(map(len, flat), initial=0)
        return _Rows(
            np.concatenate(flat), dict(zip(every, begins, strict=False)), {k: t.shape for k, t in every.items()}
        )


class _Rows(NamedTuple):
    """The rows of different tables one behind another; by the id of each its first row, and its shape."""

    values: Array
    begins: dict[int, int]
    shapes: dict[int, tuple[int, ...]]

    def tables(self, values: Array) -> dict[int, Array]:
        """Return such rows as tables."""
        parts = np.split(values, [*self.begins.values()][1:])
        return {
            key: part.reshape(*shape[:-1], values.shape[1])
            for (key, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


class Cap(NamedTuple):
    """A cap: ``weights`` · costs ≤ ``limit``, with one weight for each coordinate."""

    weights: tuple[int, ...]
    limit: int


@dataclass(frozen=True)
class WeightedSharding:
    """Least weighted sum of a sharding's costs under caps.

    Attributes
    ----------
    problem : Sharding
    weights : tuple of int
        One for each coordinate that is a sum.
    caps : tuple of Cap

    Raises
    ------
    ValueError
        If the numbers of weights are wrong, or one of them is negative.
    BeyondIntegersError
        If weighted sums may reach `LARGEST`.
    """

    problem: Sharding
    weights: tuple[int, ...]
    caps: tuple[Cap, ...] = ()

    def __post_init__(self) -> None:
        sums, width = self.problem.sums, self.problem.coordinates
        rows = [("objective", self.weights, sums), *(("cap", cap.weights, width) for cap in self.caps)]
        for name, weights, expected in rows:
            if len(weights) != expected or min(weights, default=0) < 0:
                raise ValueError(f"{name} has weights {weights}; give {expected}, none of them negative")
        _require_countable([self.largest, *(_weigh(cap.weights, self.problem.largest) for cap in self.caps)])

    @property
    def largest(self) -> int:
        """Upper bound on the weighted sum of any choice."""
        return _weigh(self.weights, self.problem.largest[: self.problem.sums])

    @property
    def binding(self) -> tuple[Cap, ...]:
        """Caps that some choice may exceed."""
        return tuple(cap for cap in self.caps if _weigh(cap.weights, self.problem.largest) > cap.limit)

    def scalar(self) -> Sharding:
        """The problem with the weighted sum as its only coordinate, without caps."""
        return self.problem.project(np.array([self.weights], np.int64), maxima=False)

    def evaluate(self, choice: Sequence[int]) -> int | None:
        """Weighted sum of a choice; None if it is impossible or exceeds a cap."""
        costs = self.problem.evaluate(choice)
        if costs is None or any(_weigh(cap.weights, costs) > cap.limit for cap in self.caps):
            return None
        return _weigh(self.weights, costs[: self.problem.sums])


def _weigh(weights: Sequence[int], costs: Sequence[int]) -> int:
    return sum(int(w) * c for w, c in zip(weights, costs, strict=True))


def _require_countable(totals: Sequence[int]) -> None:
    if max(totals, default=0) >= LARGEST:
        raise BeyondIntegersError(f"costs add up to {max(totals)}, beyond {LARGEST}; scale them")
