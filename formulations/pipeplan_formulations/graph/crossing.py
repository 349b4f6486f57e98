"""Sums over the stars that leave or enter stages between the places of one topological order."""

import itertools

import numpy as np

from pipeplan_formulations.graph.instance import GraphPartition
from pipeplan_formulations.graph.mode import Array


class Crossing:
    """Weighted sums over the stars that leave or enter a stage, for stages between the places of an order.

    A star counts in a stage from ``start`` to ``end`` by a few of its members' places: with a sign, where
    start ≤ first and last < end. Sums over all stages are cumulative sums of these signs.
    """

    def __init__(self, problem: GraphPartition, order: list[int]) -> None:
        place = {g: i for i, g in enumerate(order)}
        self._n, self._relay = len(order), problem.route == "relay"
        leave: list[tuple[int, int, int, int]] = []
        enter: list[tuple[int, int, int, int]] = []
        for e, star in enumerate(problem.stars):
            source, readers = place[star.source], sorted(place[r] for r in star.readers)
            if self._relay:
                leave.append((e, source, readers[-1], 1))
                continue
            # It leaves if the source is inside, unless all members are.
            leave += [(e, source, source, 1), (e, min(source, readers[0]), max(source, readers[-1]), -1)]
            # It enters if a reader is inside, unless the source is inside with the reader before or behind it.
            enter += [(e, r, r, 1) for r in readers]
            enter += [(e, a, b, -1) for a, b in itertools.pairwise(readers)]
            before, behind = ([r for r in readers if r < source][-1:], [r for r in readers if r > source][:1])
            enter += [(e, r, source, -1) for r in before] + [(e, source, r, -1) for r in behind]
            enter += [(e, a, b, 1) for a in before for b in behind]
        self._signs = [np.array(rows, np.int64).reshape(-1, 4).T for rows in (leave, enter)]
        self._known: dict[tuple[int, bytes], Array] = {}

    def leave(self, weights: Array, end: int) -> Array:
        """Sums of the stars that leave the stages ending at ``end``, by their start."""
        if self._relay:
            return np.full(end, self.relayed(weights)[end])
        found: Array = self._table(0, weights)[:end, end - 1]
        return found

    def enter(self, weights: Array, end: int) -> Array:
        """Sums of the stars that enter the stages ending at ``end``, by their start."""
        if self._relay:
            return self.relayed(weights)[:end]
        found: Array = self._table(1, weights)[:end, end - 1]
        return found

    def relayed(self, weights: Array) -> Array:
        """Sums of the relayed stars that cross the border before each place, from 0 to n."""
        key = 2, weights.tobytes()
        if key not in self._known:
            star, first, last, _ = self._signs[0]
            steps = np.zeros(self._n + 1, np.int64)
            np.add.at(steps, first + 1, weights[star])
            np.add.at(steps, last + 1, -weights[star])
            self._known[key] = steps.cumsum()
        found: Array = self._known[key]
        return found

    def _table(self, way: int, weights: Array) -> Array:
        """Sums for stages from each start to each last place; shape (n, n)."""
        key = way, weights.tobytes()
        if key not in self._known:
            star, first, last, sign = self._signs[way]
            table = np.zeros((self._n, self._n), np.int64)
            np.add.at(table, (first, last), sign * weights[star])
            self._known[key] = table[::-1].cumsum(axis=0)[::-1].cumsum(axis=1)
        found: Array = self._known[key]
        return found
