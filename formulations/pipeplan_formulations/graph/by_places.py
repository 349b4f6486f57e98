"""Lower bound of the graph partition by places: a linear relaxation in which groups are divided among places.

::

    places       0 │ 1 │ 2 │ 3 │ 4          as many as the flow of all stages; K − 1 − k of them lie behind place k
    solution     ╰─ flow 3 ─╯  ╰2──╯        a stage of flow r puts 1 / r of each of its groups into each of its places
    relaxation   x[g, k, v] ≥ 0             groups are divided at will, in the order of the edges

*Even places.* At each place, time is at most T and memory at most the limit. Both count by the mode that needs least:
r time / share, and r times the bytes, with the in-flight count of the flow behind.

What a linear solver finds is not trusted. Its multipliers of these rows and of the edges give a bound by themselves
(`Relaxation.bound`), whatever they are.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.common.solvers import cp_model
from pipeplan_formulations.graph.bounds import windows
from pipeplan_formulations.graph.instance import GraphPartition
from pipeplan_formulations.graph.mode import GraphMode, Line
from pipeplan_formulations.graph.prefix import most_places

Floats = NDArray[np.float64]

EXCESS = 100.0
"""Cost of memory over the limit: in multiples of the ceiling, for each multiple of the limit."""
MARGIN = 1e-9
"""Allowance for floating-point sums, relative to the sum of the terms' sizes."""


@dataclass(frozen=True)
class Multipliers:
    """Non-negative multipliers of the rows: time and memory of each place, and each edge at each place but the last."""

    time: Floats
    memory: Floats
    edges: Floats


def relaxed(problem: GraphPartition, ceiling: int, seconds: float) -> int:
    """Lower bound on the value of every solution of at most ``ceiling``; 0 if the solver does not end in time."""
    if not all(any(mode.possible[:, g].any() for mode in problem.modes) for g in range(problem.groups)):
        return 0
    relaxation = Relaxation(problem, ceiling)
    multipliers = relaxation.solve(seconds)
    return 0 if multipliers is None else relaxation.bound(multipliers)


class Relaxation:
    """Tables of the relaxation: time in multiples of the ceiling, and memory in multiples of the limit.

    Attributes: ``time`` and ``bytes``, of shape (K, V, n), and ``allowed``, where a group can be.
    """

    def __init__(self, problem: GraphPartition, ceiling: int) -> None:
        self.problem, self.ceiling, self.places = problem, max(ceiling, 1), most_places(problem)
        first, last = windows(problem, ceiling, self.places)
        # The windows are those of a stage's own place, the last of its places.
        widest = max(mode.flow for mode in problem.modes)
        self.first, self.last = np.maximum(np.array(first) - (widest - 1), 0), np.array(last)
        self._fill()

    def _fill(self) -> None:
        """Set the tables to the least over the modes that a place may belong to."""
        modes, size = self.problem.modes, (self.places, self.problem.variants, self.problem.groups)
        self.time, self.bytes = np.full(size, np.inf), np.full(size, np.inf)
        for mode in modes:
            for flow in range(self.places - mode.flow + 1):
                self._add(mode, flow)
        k = np.arange(self.places)[:, None, None]
        self.time[np.broadcast_to((k < self.first) | (k > self.last), size)] = np.inf
        self.allowed = np.isfinite(self.time)
        self.time[~self.allowed] = self.bytes[~self.allowed] = 0.0

    def _add(self, mode: GraphMode, behind: int) -> None:
        """A stage in this mode may stand before this flow."""
        line, r = _heaviest(mode), mode.flow
        held = mode.fixed + mode.flying(behind) * mode.held
        size = held * (r / max(mode.limit, 1)) if mode.limit < UNLIMITED else 0.0 * held
        own = slice(self.places - behind - r, self.places - behind)
        for table, least in ((self.time, line.time * (r / line.share / self.ceiling)), (self.bytes, size)):
            table[own] = np.minimum(table[own], np.where(mode.possible, least, np.inf))

    def bound(self, multipliers: Multipliers) -> int:
        """The bound that multipliers λ (time), μ (memory) and π (edges) give.

        For a solution of value T, in multiples of the ceiling: Σ λ T + Σ μ ≥ Σ λ time + Σ μ bytes + Σ π (y[b] − y[a]),
        which is a sum over the groups, each at least its least at any place and under any variant.
        """
        time, memory = multipliers.time[:, None, None], multipliers.memory[:, None, None]
        # A group at place k is in y from k on; `after` sums the edges' multipliers over these places.
        each = np.zeros((self.places, self.problem.groups))
        ends = np.array(self.problem.edges, np.intp).reshape(-1, 2)
        np.add.at(each[:-1].T, ends[:, 1], multipliers.edges)
        np.subtract.at(each[:-1].T, ends[:, 0], multipliers.edges)
        after = each[::-1].cumsum(axis=0)[::-1]
        cost = np.where(self.allowed, time * self.time + memory * self.bytes + after[:, None], np.inf)
        least = cost.min(axis=(0, 1))
        if not np.isfinite(least).all():
            return self.ceiling
        size = np.abs(least).sum() + 2 * multipliers.edges.sum() + multipliers.memory.sum()
        total = least.sum() - multipliers.memory.sum() - MARGIN * size
        share = multipliers.time.sum()
        if total <= 0:
            return 0
        return self.ceiling if total >= share else int(np.ceil(total / share * (1 - MARGIN) * self.ceiling))

    def solve(self, seconds: float) -> Multipliers | None:
        """Multipliers of the relaxation's optimum, None if it has none, or the solver does not end in time."""
        cp_model()
        solver: Any = import_module("ortools.linear_solver.pywraplp").Solver.CreateSolver("GLOP")
        solver.SetTimeLimit(max(1, int(1000 * seconds)))
        infinity, n = solver.infinity(), self.problem.groups
        # T, and rows of time and memory; memory over the limit has a price, so there is always a solution.
        value, goal = solver.NumVar(0, infinity, ""), solver.Objective()
        goal.SetCoefficient(value, 1)
        goal.SetMinimization()
        times = [solver.Constraint(-infinity, 0) for _ in range(self.places)]
        memories = [solver.Constraint(-infinity, 1) for _ in range(self.places)]
        for row, limit in zip(times, memories, strict=True):
            row.SetCoefficient(value, -1)
            excess = solver.NumVar(0, infinity, "")
            goal.SetCoefficient(excess, EXCESS)
            limit.SetCoefficient(excess, -1)
        # x, and y from each group's first place up to before its last: Σ x[k] = y[k] − y[k − 1].
        y: list[dict[int, Any]] = []
        for g in range(n):
            first, last = int(self.first[g]), int(self.last[g])
            y.append({k: solver.NumVar(0, 1, "") for k in range(first, last)})
            for k in range(first, last + 1):
                row = solver.Constraint(float(k == last), float(k == last))
                for at, sign in ((k, -1), (k - 1, 1)):
                    if at in y[g]:
                        row.SetCoefficient(y[g][at], sign)
                for v in np.flatnonzero(self.allowed[k, :, g]):
                    part = solver.NumVar(0, 1, "")
                    row.SetCoefficient(part, 1)
                    times[k].SetCoefficient(part, self.time[k, v, g])
                    memories[k].SetCoefficient(part, self.bytes[k, v, g])
        # Edges: y[b] ≤ y[a], where neither is settled by the windows.
        edges = {}
        for e, (a, b) in enumerate(self.problem.edges):
            for k in range(max(self.first[a], self.first[b]), min(self.last[a], self.last[b])):
                edges[e, k] = solver.Constraint(-infinity, 0)
                edges[e, k].SetCoefficient(y[b][k], 1)
                edges[e, k].SetCoefficient(y[a][k], -1)
        if solver.Solve() != solver.OPTIMAL:
            return None
        prices = np.zeros((len(self.problem.edges), self.places - 1))
        for (e, k), row in edges.items():
            prices[e, k] = max(0.0, -row.dual_value())
        time, memory = (np.array([max(0.0, -row.dual_value()) for row in rows]) for rows in (times, memories))
        return Multipliers(time, memory, prices)


def _heaviest(mode: GraphMode) -> Line:
    """The line whose load is largest if a stage holds all groups."""
    return max(mode.lines, key=lambda line: float(line.time.sum()) / line.share)
