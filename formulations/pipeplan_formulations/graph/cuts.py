"""Least crossings: what tensors cost a stage at least, by minimum cuts at its two borders.

::

    flow behind the border:   f              groups whose ancestors and own work exceed the places before the border lie
    before ▓▓▓▓▓░░?░░│░?░░░▓▓▓▓▓ behind      behind it, those whose descendants and own work exceed f places before it;
                                             the others (?) are free: a minimum cut over the downsets that are left

A tensor that crosses is counted at the border between its source and its reader, for the stage that it leaves and for
the one that it enters. On route ``direct`` it is counted only if its end certainly lies in that stage.
"""

from copy import copy
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.solvers import cp_model
from pipeplan_formulations.graph.bounds import MARGIN, least_places
from pipeplan_formulations.graph.instance import GraphPartition, Star
from pipeplan_formulations.graph.mode import Array

Mask = NDArray[np.bool_]
BITS = 40
"""Sums of capacities have at most this many bits."""


class Cuts:
    """Minimum cuts at the borders of a problem's solutions of at most ``ceiling``, on ``places`` places."""

    def __init__(self, problem: GraphPartition, ceiling: int, places: int) -> None:
        self._problem, self._places = problem, places
        self._known: dict[object, int] = {}
        self._windows: tuple[Array, Array] | None = None
        n = problem.groups
        self.above = np.array([[mask >> b & 1 for b in range(n)] for mask in problem.descendants], bool).reshape(n, n)
        # Places that each group takes at least with its ancestors, and with its descendants.
        least = least_places(problem, ceiling, places)
        self._before, self._behind = least + least @ self.above, least + self.above @ least
        self._forward = [problem.forward(star) for star in problem.stars]
        backward = [all(problem.descendants[r] >> star.source & 1 for r in star.readers) for star in problem.stars]
        oriented = [ahead or back for ahead, back in zip(self._forward, backward, strict=True)]
        self._oriented = np.array(oriented, bool)
        most = max((len(star.members) for star in problem.stars), default=1)
        self._members = np.array(
            [(*star.members, *(star.source,) * (most - len(star.members))) for star in problem.stars]
        )

    def crossing(self, flow: int, end: int, leave: Array, enter: Array, first: bool) -> tuple[int, int]:
        """Least sums of a stage between the borders in front of ``end`` and of ``flow`` places, of these weights.

        ``first``: there is no stage in front. Returned are the sum at the border in front and at the border behind.
        """
        front = 0 if first else self._least(end, flow, leave, enter, True)
        return front, self._least(flow, self._places if first else end, leave, enter, False) if flow else 0

    def fixed(self, flow: int) -> tuple[Mask, Mask]:
        """Groups that certainly lie before, and behind, the border behind which there are ``flow`` places."""
        before, behind = self._behind > flow + MARGIN, self._before > self._places - flow + MARGIN
        if self._windows is not None:
            first, last = self._windows
            before, behind = before | (last < self._places - flow), behind | (first >= self._places - flow)
        return before, behind

    def narrowed(self, first: Array, last: Array) -> "Cuts":
        """Cuts where each group lies between these places."""
        other = copy(self)
        other._known, other._windows = {}, (first, last)
        return other

    def _least(self, flow: int, other: int, leave: Array, enter: Array, front: bool) -> int:
        """The least sum at the border of ``flow``, for the stage whose other border is ``other``.

        ``front``: the border is the one in front of the stage.
        """
        relay = self._problem.route == "relay"
        key = flow, None if relay else other, front, leave.tobytes(), enter.tobytes()
        if key not in self._known:
            self._known[key] = self._cut(flow, other, leave, enter, front)
        return self._known[key]

    def _cut(self, flow: int, other: int, leave: Array, enter: Array, front: bool) -> int:
        problem = self._problem
        before, behind = self.fixed(flow)
        if (before & behind).any() or not problem.stars:
            return 0
        # Groups that lie in the stage if they lie on its side of the border.
        here = np.ones(problem.groups, bool)
        if problem.route == "direct" and 0 < other < self._places:
            here = self.fixed(other)[0 if front else 1]
        # A forward star leaves the stage at the border behind it and enters at the one in front; a backward one vice
        # versa. Members that are on one side anyway stand for it.
        heads: list[int] = []
        tails: list[int] = []
        sizes: list[int] = []
        total, count = 0, problem.groups + 2
        source, sink = problem.groups, problem.groups + 1
        node = np.where(before, source, np.where(behind, sink, np.arange(problem.groups)))
        stars: list[tuple[int, tuple[int, ...], bool, int]] = []
        side = (behind.astype(int) - before)[self._members]
        split = self._oriented & ((side.min(axis=1) != side.max(axis=1)) | (side.min(axis=1) == 0))
        for e in np.flatnonzero(split):
            star = problem.stars[e]
            leaves = self._forward[e] != front
            weight, readers = int(leave[e] if leaves else enter[e]), self._ends(star, here, leaves)
            if weight and readers:
                stars.append((star.source, readers, self._forward[e], weight))
                total += weight
        unit = max(1, total >> BITS)
        infinite = total // unit + 1
        for start, readers, forward, weight in stars:
            ends = {int(node[r]) for r in readers}
            own = int(node[start])
            if ends == {own} or (own == sink if forward else own == source):
                continue
            middle, count = count, count + 1
            ways = [(own, middle, weight // unit), *((middle, end, infinite) for end in ends)]
            for a, b, size in ways:
                tails.append(a if forward else b)
                heads.append(b if forward else a)
                sizes.append(size)
        for a, b in problem.edges:
            if node[a] != node[b] and node[a] != source and node[b] != sink:
                tails.append(int(node[b]))
                heads.append(int(node[a]))
                sizes.append(infinite)
        if not sizes:
            return 0
        cp_model()
        graph: Any = import_module("ortools.graph.python.max_flow").SimpleMaxFlow()
        graph.add_arcs_with_capacity(np.array(tails), np.array(heads), np.array(sizes))
        if graph.solve(source, sink) != graph.OPTIMAL:
            return 0
        return min(int(graph.optimal_flow()), infinite - 1) * unit

    @staticmethod
    def _ends(star: Star, here: Mask, leaves: bool) -> tuple[int, ...]:
        """Readers for which the star counts in the stage: all if its source is there, or those that are there."""
        if leaves:
            return star.readers if here[star.source] else ()
        return tuple(r for r in star.readers if here[r])
