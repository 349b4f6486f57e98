"""Costs of hybrids of two choices: the signatures of one for all operators up to a place, of the other one beyond.

::

    a a a a a a a          operators in an order in which neighbours are near each other (breadth first)
    b b a a a a a          costs are sums over operators and edges; from place to place only few of them change
    b b b b a a a
"""

from collections import deque
from collections.abc import Sequence
from itertools import permutations

import numpy as np

from pipeplan_formulations.common.pareto import front
from pipeplan_formulations.sharding.instance import Array, Sharding, possible


def hybrid_costs(problem: Sharding, choices: Sequence[Array]) -> Array:
    """Return the Pareto set of the costs of all hybrids of two of these choices, whose coordinates are sums."""
    place = _places(problem)
    count, width = len(place), problem.coordinates
    ends = np.array([(edge.source, edge.target) for edge in problem.edges], np.int64).reshape(-1, 2)
    low, high = np.sort(place[ends], axis=1).T
    sources = place[ends[:, 0]] <= place[ends[:, 1]]
    own = [np.array([table[k] for table, k in zip(problem.costs, choice, strict=True)]) for choice in choices]

    def between(first: Array, second: Array) -> Array:
        """Costs of edges whose end of lower place has the signature of the first choice, the other of the second."""
        return np.array(
            [
                table[first[u], second[v]] if forward else table[second[u], first[v]]
                for (u, v, table), forward in zip(problem.edges, sources.tolist(), strict=True)
            ],
            np.int64,
        ).reshape(-1, width)

    along = [between(choice, choice) for choice in choices]
    found = [np.zeros((0, width), np.int64)]
    for a, b in permutations(range(len(choices)), 2):
        mixed = between(choices[b], choices[a])
        fits = possible(mixed)
        # steps[k]: what changes from the hybrid with k operators of b to that with k + 1
        steps = np.zeros((count + 1, width), np.int64)
        np.add.at(steps, place, own[b] - own[a])
        plain = np.where(fits[:, None], mixed, 0)
        np.add.at(steps, low, plain - along[a])
        np.add.at(steps, high, along[b] - plain)
        broken = np.zeros(count + 1, np.int64)
        np.add.at(broken, low[~fits], 1)
        np.add.at(broken, high[~fits], -1)
        begin = own[a].sum(axis=0) + along[a].sum(axis=0)
        costs = begin + np.cumsum(steps[:-1], axis=0)
        found.append(front(costs[np.cumsum(broken[:-1]) == 0]))
    return front(np.concatenate(found))


def _places(problem: Sharding) -> Array:
    """Place of each operator in breadth-first order from a far end of the graph."""
    beside: list[list[int]] = [[] for _ in problem.costs]
    for u, v, _ in problem.edges:
        beside[u].append(v)
        beside[v].append(u)
    left, order = set(range(len(beside))), list[int]()
    while left:
        end = _walk(beside, min(left))[-1]
        order += _walk(beside, end)
        left -= {*order}
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place


def _walk(beside: Sequence[Sequence[int]], begin: int) -> list[int]:
    """Operators that are connected with one, in breadth-first order."""
    found, queue = {begin: None}, deque([begin])
    while queue:
        for v in beside[queue.popleft()]:
            if v not in found:
                found[v] = None
                queue.append(v)
    return list(found)
