"""Exact dynamic programme over a family of downsets: the best sequence of stages between its members.

::

    {} ──stage──▶ {0} ──stage──▶ {0,1,2} ──stage──▶ {0,1,2,3}       all downsets: the optimum
                                                                    those of some orders: a plan, and a warm start

For a target T, the table holds the least number of the first pool's devices that stages of load T or less need from
each downset on. It is filled backwards, for every flow behind and every use of the other pools. The least T is found by
bisection of the list of all loads that occur.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.graph.fronts import TooLargeError
from pipeplan_formulations.graph.instance import GraphPartition, GraphStage, Stages
from pipeplan_formulations.graph.mode import Array
from pipeplan_formulations.graph.spans import Spans, SpanTable

Flags = NDArray[np.bool_]

MOST_SPANS = 20_000_000
"""Largest number of stages kept in memory."""
NEVER = 2**40
"""Number of devices that stands for an unreachable state."""


class Walk:
    """Stages between the members of one family, generated once for all targets.

    ``divided``: variants are divided (`fractions`), so the loads are bounds, and solutions may be above the target.

    Raises
    ------
    TooLargeError
        If there are too many stages of load ``most`` or less, or too many choices of variants.
    """

    def __init__(
        self, problem: GraphPartition, downsets: Sequence[int], clock: Clock, most: int, divided: bool = False
    ) -> None:
        self._problem, self._clock = problem, clock
        self._table = SpanTable(problem, downsets, clock, most if divided else None)
        self._spans: list[Spans] = []
        kept = 0
        for start in range(len(downsets) - 1):
            clock.check()
            self._spans.append(self._table.after(start, most))
            kept += len(self._spans[-1].load)
            if kept > MOST_SPANS:
                raise TooLargeError
        self._path: list[tuple[int, int]] = []
        self._states = _States(problem)
        self._borders = self._table.borders()

    def loads(self) -> Array:
        """All loads that occur, ascending."""
        return np.unique(np.concatenate([self._borders.ravel(), *(spans.load for spans in self._spans)]))

    def reach(self, target: int) -> Stages | None:
        """Stages of load ``target`` or less that hold all groups, or None if there are none."""
        # least[d, s]: fewest devices of the first pool for all groups outside downset d, ending in state s.
        states, pool = self._states, self._problem.pools[0]
        over = self._over(target)
        least = np.full((len(self._spans) + 1, states.count), NEVER, np.int64)
        least[-1, 0] = 0
        for start in range(len(self._spans) - 1, -1, -1):
            if start % 16 == 0:
                self._clock.check()
            spans = self._spans[start]
            count = spans.upto(target)
            if count and states.count == 1:
                least[start, 0] = (least[spans.end[:count], 0] + states.first[spans.mode[:count]]).min()
            elif count:
                self._spread(least, start, count, over)
            least[start][least[start] > pool] = NEVER
        # Row 0 holds complete solutions: the state with the fewest devices is traced if the pool has enough.
        whole = np.where(states.complete, least[0], NEVER)
        state = int(whole.argmin())
        return self._trace(least, state, target, over) if whole[state] <= pool else None

    def raised(self, target: int) -> list[int]:
        """Replace bounds of the last solution's stages by their loads, where these are above ``target``; return them.

        A row's load is that with the most flow behind; rows of less flow have fewer in flight, and loads of their own.
        """
        found = []
        for start, k in self._path:
            spans = self._spans[start]
            load = self._table.load(int(spans.mode[k]), start, int(spans.end[k]), int(spans.point[k]))
            if load is not None and load > target:
                found.append(load)
                spans.load[k] = load
                order = np.argsort(spans.load, kind="stable")
                rows = (spans.mode, spans.end, spans.load, spans.most, spans.point)
                self._spans[start] = Spans(*(row[order] for row in rows))
        return found

    def _over(self, target: int) -> Flags:
        """For each value of `_States.border`, the downsets behind which that border is not allowed."""
        free, shut = (np.full((1, self._borders.shape[1]), value) for value in (False, True))
        return np.concatenate([free, self._borders > target, shut])

    def _spread(self, least: Array, start: int, count: int, over: Flags) -> None:
        """Fill ``least[start]`` for every state, mode by mode: a mode maps all states in the same way."""
        # Stages sorted by mode; ``begins`` are the first rows of each mode.
        states, spans = self._states, self._spans[start]
        rows = np.argsort(spans.mode[:count], kind="stable")
        modes, begins = np.unique(spans.mode[rows], return_index=True)
        # devices[r, s]: devices used with stage r in front of state s; excluded by flow or by a border's load.
        devices = least[spans.end[rows]] + states.first[spans.mode[rows], None]
        devices[states.flow > spans.most[rows, None]] = NEVER
        if states.bordered:
            devices[over[states.border[spans.mode[rows]], spans.end[rows, None]]] = NEVER
        # Best stage of each mode, written to the state that the mode leads to.
        best = np.minimum.reduceat(devices, begins, axis=0)
        then = states.then[modes]
        valid = (then >= 0) & (best < NEVER)
        np.minimum.at(least[start], then[valid], best[valid])

    def _trace(self, least: Array, state: int, target: int, over: Flags) -> Stages:
        """Stages of a table entry, recovered from the front."""
        stages, at = [], 0
        self._path = []
        while at < len(self._spans):
            at, state, stage = self._step(least, at, state, target, over)
            stages.append(stage)
        return tuple(stages)

    def _step(self, least: Array, at: int, state: int, target: int, over: Flags) -> tuple[int, int, GraphStage]:
        states, spans = self._states, self._spans[at]
        count = spans.upto(target)
        for mode in np.unique(spans.mode[:count]):
            rows = np.flatnonzero(spans.mode[:count] == mode)
            before = np.flatnonzero(states.then[mode] == state)
            devices = least[np.ix_(spans.end[rows], before)] + states.first[mode]
            made = (devices == least[at, state]) & (states.flow[before] <= spans.most[rows, None])
            made &= ~over[states.border[mode, before], spans.end[rows, None]]
            if made.any():
                row, column = (int(i[0]) for i in np.nonzero(made))
                k = rows[row]
                self._path.append((at, int(k)))
                end = int(spans.end[k])
                variants = self._table.variants(int(mode), at, end, int(spans.point[k]))
                stage = GraphStage(int(mode), tuple(self._table.groups(at, end)), variants)
                return end, int(before[column]), stage
        raise AssertionError("an entry of the table has no stage that made it")


class _States:
    """States of the dynamic programme: summary of the stages behind a downset.

    A state holds their flow (capped where more makes no difference), their number if depths are given, the mode of the
    first of them if there are borders, and their use of all pools except the first.

    Attributes: ``first[m]`` is the number of first-pool devices of mode m. ``then[m, s]`` is the state once a stage of
    mode m precedes state s (−1: too many devices). ``border[m, s]`` is the border between the two: 0 is none, i + 1 is
    border i, and the last value marks forbidden neighbours. ``complete`` marks the states allowed for a whole solution.
    """

    def __init__(self, problem: GraphPartition) -> None:
        modes = problem.modes
        deep = max((mode.steps[-1][0] for mode in modes if mode.depends_on_flow), default=0)
        pairs = np.zeros((len(modes), 0), np.int64) if problem.pairs is None else problem.pairs
        # Modes with the same column of ``pairs`` are equivalent as the first stage behind.
        columns, group = np.unique(pairs, axis=1, return_inverse=True)
        counts = deep, max(problem.depths, default=0), columns.shape[1], *problem.pools[1:]
        # grid: rows (flow, number of stages, column of the first mode + 1, use of each other pool), one column a state.
        shape = tuple(count + 1 for count in counts)
        grid = np.indices(shape).reshape(len(shape), -1)
        self.count = grid.shape[1]
        self.flow = grid[0]
        self.complete = np.isin(grid[1], problem.depths) if problem.depths else np.ones(self.count, np.bool_)
        self.bordered = problem.pairs is not None
        shut = np.where(columns < 0, len(problem.borders) + 1, columns + 1)
        self.border = np.insert(shut, 0, 0, axis=1)[:, grid[2]]
        self.first = np.array([mode.takes[0] for mode in modes], np.int64)
        self.then = np.empty((len(modes), self.count), np.int64)
        # State after one more stage in front, for every mode and state.
        for m, mode in enumerate(modes):
            moved = grid + np.array([mode.flow, int(bool(problem.depths)), 0, *mode.takes[1:]])[:, None]
            moved[0] = np.minimum(moved[0], deep)
            moved[2] = group.ravel()[m] + 1 if self.bordered else 0
            valid = (np.array(shape) > moved.T).all(axis=1)
            self.then[m] = np.where(valid, np.ravel_multi_index(np.where(valid, moved, 0), shape), -1)
