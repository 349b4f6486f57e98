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

from copy import copy
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.common.solvers import cp_model
from pipeplan_formulations.graph.bounds import windows
from pipeplan_formulations.graph.cuts import Cuts
from pipeplan_formulations.graph.instance import GraphPartition
from pipeplan_formulations.graph.mode import GraphMode, Line
from pipeplan_formulations.graph.prefix import most_places

Floats = NDArray[np.float64]

EXCESS = 100.0
"""Cost of memory over the limit: in multiples of the ceiling, for each multiple of the limit."""
LARGE = 1e6
"""Cost of a group where it cannot be, in multiples of the ceiling."""
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

    Attributes: ``time`` and ``bytes``, of shape (K, V, n), and ``allowed``, where a group can be; ``crossing`` and
    ``received``, of shape (K,), what tensors cost at least; ``top``, the value of the solutions that it is about.
    """

    def __init__(self, problem: GraphPartition, ceiling: int) -> None:
        self.problem, self.ceiling, self.places = problem, max(ceiling, 1), most_places(problem)
        first, last = windows(problem, ceiling, self.places)
        # The windows are those of a stage's own place, the last of its places.
        widest = max(mode.flow for mode in problem.modes)
        self.first, self.last = np.maximum(np.array(first) - (widest - 1), 0), np.array(last)
        self.top = self.ceiling
        self.shape: tuple[int, ...] = ()
        self.closed = False
        self._cuts = Cuts(problem, ceiling, self.places)
        self._fill(closed=False)

    def below(self, shape: tuple[int, ...], closed: bool) -> "Relaxation":
        """The relaxation in which the last stages have these modes, the last one first; ``closed``: only these."""
        other = copy(self)
        other.shape = shape
        other._fill(closed)
        return other

    def narrowed(self, multipliers: Multipliers, top: int) -> "Relaxation":
        """The relaxation for solutions of at most ``top`` of a closed shape, with fewer places for each group.

        A group is behind a border if it and its ancestors cost more than the places before it have; before it likewise.
        """
        other = copy(self)
        other.top = min(self.top, top)
        borders, last = [], self.places
        for m in self.shape[:-1]:
            last -= self.problem.modes[m].flow
            borders.append(last)
        # Ancestors that cost more than the places before a border have, descendants that cost more than those behind.
        other.first, other.last = self.first.copy(), self.last.copy()
        own = multipliers.time[:, None] * self.time.transpose(1, 0, 2)
        own = own + multipliers.memory[:, None] * self.bytes.transpose(1, 0, 2)
        own = np.where(self.allowed.transpose(1, 0, 2), own, np.inf).min(axis=0)
        budget = multipliers.time * (other.top / self.ceiling - self.crossing) + multipliers.memory * (
            1 - self.received
        )
        above, margin = self._cuts.above, MARGIN * (1 + float(multipliers.time.sum() + multipliers.memory.sum()))
        for p in borders:
            front, behind = (np.minimum(part.min(axis=0), LARGE) for part in (own[:p], own[p:]))
            before = front + front @ above > budget[:p].sum() + margin
            other.first = np.where(before, np.maximum(other.first, p), other.first)
            after = behind + above @ behind > budget[p:].sum() + margin
            other.last = np.where(after, np.minimum(other.last, p - 1), other.last)
        other._cuts = self._cuts.narrowed(other.first, other.last)
        other._fill(self.closed)
        return other

    def _fill(self, closed: bool) -> None:
        """Set the tables to the least over the modes that a place may belong to."""
        self.closed = closed
        modes, size = self.problem.modes, (self.places, self.problem.variants, self.problem.groups)
        self.time, self.bytes = np.full(size, np.inf), np.full(size, np.inf)
        self.crossing, self.received = np.zeros(self.places), np.zeros(self.places)
        behind = 0
        for s, m in enumerate(self.shape):
            self._add(modes[m], behind)
            self._cross(modes[m], behind, s + 1 == len(self.shape), closed)
            behind += modes[m].flow
        for mode in () if closed else modes:
            for flow in range(behind, self.places - mode.flow + 1):
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

    def _cross(self, mode: GraphMode, behind: int, front: bool, first: bool) -> None:
        """Set what tensors cost this stage at least; ``front``: the first of those known, ``first``: of all."""
        line, r = _heaviest(mode), mode.flow
        own = slice(self.places - behind - r, self.places - behind)
        for weights, table, scale in (
            ((line.leave, line.enter), self.crossing, line.times / line.divisor / line.share / self.ceiling),
            ((0 * mode.received, mode.received), self.received, mode.flying(behind) / max(mode.limit, 1)),
        ):
            if weights[1].any() or weights[0].any():
                at_front, at_back = self._cuts.crossing(behind, behind + r, *weights, first=front and first)
                table[own] = scale * (at_back + (0 if front and not first else at_front))

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
            return self.top
        crossing = multipliers.time @ self.crossing + multipliers.memory @ self.received
        size = np.abs(least).sum() + 2 * multipliers.edges.sum() + multipliers.memory.sum() + crossing
        total = least.sum() + crossing - multipliers.memory.sum() - MARGIN * size
        share = multipliers.time.sum()
        if total <= 0:
            return 0
        return self.top if total >= share else min(self.top, int(np.ceil(total / share * (1 - MARGIN) * self.ceiling)))

    @property
    def unpriced(self) -> Multipliers:
        """Multipliers of zero: their bound says only whether there is a group that can be nowhere."""
        nothing = np.zeros(self.places)
        return Multipliers(nothing, nothing, np.zeros((len(self.problem.edges), self.places - 1)))

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
        times = [solver.Constraint(-infinity, -own) for own in self.crossing]
        memories = [solver.Constraint(-infinity, 1 - own) for own in self.received]
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
