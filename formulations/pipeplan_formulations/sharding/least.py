"""The least of several sums, each by itself, or of one with its choice: one elimination of small tables in arrays.

::

    (w), (u, w), (w, v)     joined over all cells, then the least over w's signatures      ──▶      (u, v)

Unlike `frontier` this has no classes of signatures and no sets of points, and all sums share its joins. Where tables
are large, each sum has a frontier instead.
"""

import math
from typing import NamedTuple

import numpy as np

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.sharding.frontier import frontier
from pipeplan_formulations.sharding.instance import LARGEST, Array, Choice, Sharding, possible
from pipeplan_formulations.sharding.scalars import aligned

SMALL = 2**14
"""Most cells of a join that is made for all sums at once."""


class Joined(NamedTuple):
    """Sums over all cells of an operator and its neighbours, which come first; of shape (…, signatures, D)."""

    operator: int
    beside: tuple[int, ...]
    sums: Array


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
    found = _eliminated(problem)
    if found is None:
        points = [
            frontier(problem.project(row), clock).points for row in np.eye(problem.coordinates, dtype=np.int64)[:, None]
        ]
        return tuple(int(own[0, 0]) for own in points if len(own))
    sums, _ = found
    return () if (sums >= LARGEST).any() else tuple(sums.tolist())


def least_choice(problem: Sharding, clock: Clock) -> Choice | None:
    """Return a choice that has the least of a problem's only coordinate, a sum; None if there is no choice.

    Raises
    ------
    ValueError
        If there are more coordinates, or it is a maximum.
    OutOfTimeError, TooLargeError
        As `frontier`.
    """
    if problem.maxima or problem.coordinates > 1:
        raise ValueError(f"{problem.coordinates} coordinates, {problem.maxima} of them maxima; give one sum")
    found = _eliminated(problem)
    if found is None:
        whole = frontier(problem, clock)
        return whole.choice(0) if len(whole.points) else None
    sums, every = found
    if sums[0] >= LARGEST:
        return None
    chosen: dict[int, int] = {}
    for own in reversed(every):
        chosen[own.operator] = int(own.sums[tuple(chosen[u] for u in own.beside)].argmin())
    return tuple(chosen[v] for v in range(len(problem.costs)))


def _eliminated(problem: Sharding) -> tuple[Array, list[Joined]] | None:
    """The least sums, and what was joined for each operator; None where that were more than `SMALL` cells."""
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

    every: list[Joined] = []
    while beside:
        v = min(beside, key=cells)
        if cells(v) > SMALL:
            return None
        others = tuple(sorted(beside.pop(v)))
        for u in others:
            beside[u] |= {*others}
            beside[u] -= {u, v}
        own = [table for table in tables if v in table[0]]
        every.append(Joined(v, others, _joined(own, (*others, v), counts)))
        tables = [table for table in tables if v not in table[0]]
        tables.append((others, every[-1].sums.min(axis=-2)))
    return np.minimum(np.sum([table for _, table in tables], axis=0), LARGEST), every


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
