"""The least of several sums, each by itself: one elimination of small tables in arrays.

::

    (w), (u, w), (w, v)     joined over all cells, then the least over w's signatures      ──▶      (u, v)

Unlike `frontier` this finds no choices, so that all sums share its joins. Where tables are large, each sum has a
frontier, which has classes of signatures.
"""

import math

import numpy as np

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.sharding.frontier import frontier
from pipeplan_formulations.sharding.instance import LARGEST, Array, Sharding, possible
from pipeplan_formulations.sharding.scalars import aligned

SMALL = 2**14
"""Most cells of a join that is made for all sums at once."""


def least_sums(problem: Sharding, clock: Clock) -> tuple[int, ...]:
    """Return the least of each coordinate over all choices, whatever the others are; empty if there is no choice.

    Raises
    ------
    ValueError
        If some coordinate is a maximum.
    OutOfTimeError, TooLargeError
        As `frontier`.
    """
    if problem.maxima:
        raise ValueError(f"{problem.maxima} coordinates are maxima; drop them")
    counts = [len(costs) for costs in problem.costs]
    tables: list[tuple[tuple[int, ...], Array]] = [
        *(((v,), _plain(costs)) for v, costs in enumerate(problem.costs)),
        *(((u, v), _plain(costs)) for u, v, costs in problem.edges),
    ]
    beside: dict[int, set[int]] = {v: set() for v in range(len(counts))}
    for u, v, _ in problem.edges:
        beside[u].add(v)
        beside[v].add(u)

    def cells(v: int) -> int:
        return counts[v] * math.prod([counts[u] for u in beside[v]])

    while beside:
        v = min(beside, key=cells)
        if cells(v) > SMALL:
            points = [
                frontier(problem.project(row), clock).points
                for row in np.eye(problem.coordinates, dtype=np.int64)[:, None]
            ]
            return tuple(int(own[0, 0]) for own in points if len(own))
        scope = *sorted(others := beside.pop(v)), v
        for u in others:
            beside[u] |= others
            beside[u] -= {u, v}
        own = [table for table in tables if v in table[0]]
        tables = [table for table in tables if v not in table[0]]
        tables.append((scope[:-1], _joined(own, scope, counts).min(axis=-2)))
    every = np.sum([table for _, table in tables], axis=0)
    return () if (every >= LARGEST).any() else tuple(every.tolist())


def _plain(costs: Array) -> Array:
    """Costs with `LARGEST` in every coordinate of what is impossible."""
    return np.where(possible(costs)[..., None], costs, LARGEST)


def _joined(tables: list[tuple[tuple[int, ...], Array]], scope: tuple[int, ...], counts: list[int]) -> Array:
    """Sums over all cells of a scope: shape (classes of each operator …, coordinates)."""
    total = np.zeros((*(counts[v] for v in scope), tables[0][1].shape[-1]), np.int64)
    for own, table in tables:
        axes = *(scope.index(v) for v in own), len(scope)
        total += aligned(table, axes, len(scope) + 1)
        np.minimum(total, LARGEST, out=total)
    return total
