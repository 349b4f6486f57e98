r"""The chain allocation problem for one number of stages, as rows of switches and T.

::

    y[s, i] = 1      layer i lies in stage s or before; it lies in s where y[s − 1, i] is 0, and s ends where y drops
    mode[s, m]       stage s has mode m, a kind and a width
    on[s, i, m]      x[s, i] and mode[s, m]
    again[s, i, m]   layer i is recomputed in stage s
    use[s, c, u]     u units of kind c are used from stage s on
    hold[s, m, k]    mode[s, m], and k of (1)
    hop[s, h]        kinds before and behind, and whether a node is left, between stages s and s + 1

Products of switches become switches of their own: those of x and mode add up to x and stay below mode, and so on. All
times are sums over them, so every row of (3) and (4) is one line on paper, asked for where its mode and its k are
chosen.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

from pipeplan_formulations.allocation.problem import Allocation, ChainAllocation, Mode, Place
from pipeplan_formulations.allocation.terms import own, services, step_on
from pipeplan_formulations.graph.rows import Rows
from pipeplan_formulations.partition.expression import Expression
from pipeplan_formulations.scaling import Scale

Switches = dict[int, Expression]
Option = TypeVar("Option", bound=tuple[int, ...])


@dataclass(frozen=True)
class DepthModel:
    """Rows, which variable is T, and where to read an allocation from.

    Attributes
    ----------
    ends : for each stage but the last, what tells whether it ends at each cut
    modes : for each stage, the switch of each mode
    """

    rows: Rows
    time: int
    scale: Scale
    layers: int
    ends: list[Switches]
    modes: list[dict[Mode, int]]

    def read(self, point: list[float]) -> Allocation:
        """The allocation of a solver's values."""
        whole = [round(value) for value in point]
        edges = [0, *(1 + next(c for c, end in ends.items() if end.value(whole)) for ends in self.ends), self.layers]
        chosen = [next(mode for mode, switch in modes.items() if whole[switch]) for modes in self.modes]
        return tuple(Place(edges[s], edges[s + 1], *mode) for s, mode in enumerate(chosen))


def depth_model(problem: ChainAllocation, depth: int, scale: Scale, high: int) -> DepthModel:
    """The model with ``depth`` stages and T at most ``high``, in scaled time."""
    builder = _Builder(problem, depth, scale, high)
    builder.place()
    builder.choose()
    builder.count()
    builder.hold()
    builder.link()
    (builder.bottleneck if problem.objective == "bottleneck" else builder.step)()
    return DepthModel(builder.rows, builder.time, scale, problem.layers, builder.ends, builder.modes)


class _Builder:
    def __init__(self, problem: ChainAllocation, depth: int, scale: Scale, high: int) -> None:
        self.problem, self.depth, self.scale = problem, depth, scale
        self.rows = Rows()
        self.time = self.rows.number(0, high)
        self.every_mode = [(c, w) for c in range(problem.kinds) for w in problem.widths]
        self.ends: list[Switches] = []
        self.modes: list[dict[Mode, int]] = []

    def _switch(self) -> Expression:
        return Expression({self.rows.switch(): 1})

    def _at_least(self, expression: Expression, least: int = 0, when: tuple[int, ...] = ()) -> None:
        self.rows.at_least(expression.terms, least - expression.constant, when)

    def _equal(self, expression: Expression) -> None:
        self.rows.equals(expression.terms, -expression.constant)

    def _one_of(self, switches: Iterable[Expression], whole: Expression | int = 1) -> None:
        """They add up to ``whole``."""
        self._equal(_total(switches) - whole)

    def place(self) -> None:
        """Each layer on one stage, stages in order, none empty, cuts where they are allowed."""
        n = self.problem.layers
        y = [[self._switch() for _ in range(n)] for _ in range(self.depth - 1)]
        none, all_ = [Expression({})] * n, [Expression({}, 1)] * n
        steps = [none, *y, all_]
        for row in y:
            for i in range(n - 1):
                self._at_least(row[i] - row[i + 1])
        self.x = [[later[i] - before[i] for i in range(n)] for before, later in pairwise(steps)]
        for inside in self.x:
            for layer in inside:
                self._at_least(layer)
            self._at_least(_total(inside), 1)
        for row in y:
            self.ends.append({c: row[c] - row[c + 1] for c in range(n - 1)})
            for c, end in self.ends[-1].items():
                if not self.problem.cuts[c]:
                    self._at_least(-end)

    def choose(self) -> None:
        """A mode for each stage, as wished; each layer's product with it; layers to be recomputed."""
        problem, n = self.problem, self.problem.layers
        self.on: list[dict[Mode, list[Expression]]] = []
        self.again: list[dict[Mode, dict[int, Expression]]] = []
        wishes = dict(enumerate(problem.first))
        wishes |= {self.depth - len(problem.last) + j: mode for j, mode in enumerate(problem.last)}
        for s in range(self.depth):
            self.modes.append({mode: self.rows.switch() for mode in self.every_mode})
            chosen = {mode: Expression({v: 1}) for mode, v in self.modes[s].items()}
            self._one_of(chosen.values())
            if s in wishes:
                self._at_least(chosen[wishes[s]], 1)
            self.on.append({mode: [self._switch() for _ in range(n)] for mode in self.every_mode})
            self.again.append({mode: {} for mode in self.every_mode})
            for i in range(n):
                self._one_of((self.on[s][mode][i] for mode in self.every_mode), self.x[s][i])
                for mode in self.every_mode:
                    self._at_least(chosen[mode] - self.on[s][mode][i])
                    if problem.recomputable[i]:
                        self.again[s][mode][i] = self._switch()
                        self._at_least(self.on[s][mode][i] - self.again[s][mode][i])

    def count(self) -> None:
        """Units from each stage on, none beyond what there is, and k of (1)."""
        problem = self.problem
        self.use = [
            [{u: self._switch() for u in range(int(units) + 1)} for units in problem.units] for _ in range(self.depth)
        ]
        self.holds: list[dict[tuple[Mode, int], int]] = []
        for s in range(self.depth):
            total = Expression({})
            for c, use in enumerate(self.use[s]):
                self._one_of(use.values())
                units = _total(u * switch for u, switch in use.items())
                behind = self.use[s + 1][c] if s + 1 < self.depth else {}
                self._equal(
                    units
                    - _total(u * switch for u, switch in behind.items())
                    - _total(w * Expression({v: 1}) for (kind, w), v in self.modes[s].items() if kind == c)
                )
                total = total + units
            self.holds.append({})
            for mode, chosen in self.modes[s].items():
                self._flights(s, mode, chosen, total)

    def _flights(self, s: int, mode: Mode, chosen: int, total: Expression) -> None:
        problem, width = self.problem, mode[1]
        most, share = int(problem.units.sum()), problem.share(width)
        possible = np.arange(width, most + 1)
        found = {}
        for k in sorted({int(k) for k in problem.in_flight(possible, width)}):
            reached = possible[problem.in_flight(possible, width) == k]
            switch = self.holds[s][mode, k] = self.rows.switch()
            found[k] = Expression({switch: 1})
            self._at_least(total, int(reached[0]), (switch,))
            self._at_least(-total, -int(reached[-1]), (switch,))
        assert all(k <= share for k in found)
        self._one_of(found.values(), Expression({chosen: 1}))

    def hold(self) -> None:
        """(2) for each stage, mode and k, once for each layer that may have the largest workspace."""
        problem = self.problem
        for s in range(self.depth):
            received = _total(int(problem.received[c]) * end for c, end in (self.ends[s - 1] if s else {}).items())
            for (mode, k), switch in self.holds[s].items():
                on, again = self.on[s][mode], self.again[s][mode]
                resident = problem.resident[mode[0], problem.widths.index(mode[1])]
                stays = _total(int(resident[i]) * on[i] for i in range(problem.layers))
                held = received + _total(int(problem.saved[i]) * on[i] for i in range(problem.layers))
                for i, layer in again.items():
                    held = held - int(problem.saved[i] - problem.output[i]) * layer
                room = Expression({}, int(problem.limit[mode[0]])) - stays - k * held
                for i in range(problem.layers):
                    self._at_least(room - int(problem.workspace[i]) * on[i], 0, (switch,))
                for i, layer in again.items():
                    self._at_least(room - int(problem.saved[i] + problem.workspace[i]) * layer, 0, (switch,))

    def link(self) -> None:
        """f, g and l of each hop, and ĝ before each stage, from the switches of what lies there."""
        problem = self.problem
        self.send, self.back, self.latency, self.into = [], [], [], [Expression({})]
        for s in range(self.depth - 1):
            hops = {
                (c, behind, leaves): [
                    self._kind(s, c),
                    self._kind(s + 1, behind),
                    *self._leaves(s + 1, c, behind, leaves),
                ]
                for c in range(problem.kinds)
                for behind in range(problem.kinds)
                for leaves in ([0, 1] if c == behind else [1])
            }
            chosen, at = self._product(hops, self.ends[s])
            self.send.append(_total(int(problem.send[h][c]) * switch for (h, c), switch in at.items()))
            self.back.append(_total(int(problem.send_back[h][c]) * switch for (h, c), switch in at.items()))
            self.latency.append(_total(int(problem.latency[h]) * switch for h, switch in chosen.items()))
            before = {
                (c, leaves): [self._kind(s + 1, c), *self._leaves(s + 1, c, c, leaves)]
                for c in range(problem.kinds)
                for leaves in (0, 1)
            }
            _, at_start = self._product(before, self.ends[s])
            self.into.append(_total(int(problem.least_back[h][c]) * switch for (h, c), switch in at_start.items()))
        nothing = Expression({})
        self.send, self.back, self.latency = ([*row, nothing] for row in (self.send, self.back, self.latency))

    def _kind(self, s: int, kind: int) -> Expression:
        """Whether stage s is of this kind."""
        return _total(Expression({v: 1}) for (c, _), v in self.modes[s].items() if c == kind)

    def _leaves(self, s: int, before: int, behind: int, leaves: int) -> list[Expression]:
        """Whether a hop to stage s leaves a node; always, and so nothing to ask, between unlike kinds."""
        if before != behind:
            return []
        node = int(self.problem.node[behind])
        return [_total(switch for u, switch in self.use[s][behind].items() if (u % node == 0) == bool(leaves))]

    def _product(
        self, options: Mapping[Option, list[Expression]], ends: Switches
    ) -> tuple[dict[Option, Expression], dict[tuple[Option, int], Expression]]:
        """One of the options, which needs all of its conditions; and its product with the cut."""
        chosen = {option: self._switch() for option in options}
        self._one_of(chosen.values())
        for option, conditions in options.items():
            for condition in conditions:
                self._at_least(condition - chosen[option])
        at = {(option, c): self._switch() for option in options for c in ends}
        for c, end in ends.items():
            self._one_of((at[option, c] for option in options), end)
        for (option, _), switch in at.items():
            self._at_least(chosen[option] - switch)
        return chosen, at

    def _times(self, s: int) -> tuple[Expression, Expression]:
        """F and B of stage s."""
        problem, n = self.problem, self.problem.layers
        forward = backward = Expression({})
        for (kind, width), on in self.on[s].items():
            forward = forward + _total(int(problem.forward[kind, i]) * on[i] for i in range(n))
            backward = backward + _total(int(problem.backward[kind, i]) * on[i] for i in range(n))
            backward = backward + _total(
                int(problem.forward[kind, i]) * layer for i, layer in self.again[s][kind, width].items()
            )
        return forward, backward

    def _bound(self, expression: Expression, when: tuple[int, ...], times: int = 1) -> None:
        """``times`` · T ≥ the expression, rounded down to scaled time."""
        self._at_least(Expression({self.time: times}) - expression.down(self.scale.unit), 0, when)

    def bottleneck(self) -> None:
        """T is no less than any ⌊load / r⌋."""
        problem = self.problem
        for s in range(self.depth):
            load = own(problem.overlap, 1, *self._times(s), self.send[s])
            load = load + self.into[s] if problem.overlap == "none" else load
            for (_, width), mode in self.modes[s].items():
                replicas, period = width * problem.unit, problem.wire_loads[width]
                self._bound(load - (replicas - 1), (mode,), replicas)
                if problem.overlap != "none":
                    self._bound(self.send[s] - (period - 1), (mode,), period)
                    self._bound(self.back[s] - (period - 1), (mode,), period)

    def step(self) -> None:
        """(3) where a mode is chosen, (4) where a mode and its k are."""
        problem, overlap = self.problem, self.problem.overlap
        times = [self._times(s) for s in range(self.depth)]
        head, heads = self._finish(), []
        for s, (forward, backward) in enumerate(times):
            heads.append(head)
            head = head + step_on(overlap, forward + backward, self.send[s], self.back[s], self.latency[s])
        for s, (forward, backward) in enumerate(times):
            for (_, width), mode in self.modes[s].items():
                many = problem.share(width)
                wait = (many - 1) * self.into[s] if overlap == "none" else 0
                self._bound(heads[s] + own(overlap, many, forward, backward, self.send[s]) + wait, (mode,))
            for ((_, width), k), switch in self.holds[s].items():
                many = problem.share(width)
                held = problem.warm_up(k) if problem.alternating else many
                parts = forward, backward, self.send[s], self.back[s], self.into[s]
                for service in services(overlap, many, held, problem.wire_shares[width], *parts):
                    self._bound(head + service, (switch,))

    def _finish(self) -> Expression:
        """E_0; the base once if a layer with something to reduce is in the first stage."""
        problem, total = self.problem, Expression({})
        for (kind, width), on in self.on[0].items():
            w = problem.widths.index(width)
            base = self._switch()
            for i in range(problem.layers):
                total = total + int(problem.update[kind, w, i] + problem.reduce[kind, w, i]) * on[i]
                if problem.reduce[kind, w, i]:
                    self._at_least(base - on[i])
            total = total + int(problem.reduce_base[kind, w]) * base
        return total


def _total(expressions: Iterable[Expression]) -> Expression:
    """Their sum."""
    terms: dict[int, int] = {}
    constant = 0
    for expression in expressions:
        constant += expression.constant
        for variable, coefficient in expression.terms.items():
            terms[variable] = terms.get(variable, 0) + coefficient
    return Expression(terms, constant)
