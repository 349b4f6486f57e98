r"""Constraints of the allocation problem with a fixed number of stages, as rows over 0-1 variables (*switches*).

::

    y[s, i] = 1      layer i lies in stage s or before; it lies in s if y[s − 1, i] is 0, and s ends where y drops
    x[s, i]          y[s, i] − y[s − 1, i]: layer i lies in stage s
    mode[s, m]       stage s has mode m, a kind and a width
    on[s, i, m]      x[s, i] and mode[s, m]
    again[s, i, m]   layer i is recomputed in stage s
    use[s, p, u]     u units of pool p are used from stage s on
    hold[s, m, k]    mode[s, m], and k of the in-flight rule
    hop[s, h]        kinds before and behind, and if the hop leaves a node, between stages s and s + 1

Products of switches are switches themselves: those of x and mode add up to x and are at most mode, and so on. All times
are sums over switches, so each way-back bound and one-stage delay is one row, enforced where its mode and its k are
chosen.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TypeVar

import numpy as np

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.place import ModeKey
from pipeplan_formulations.common.mip.model import Expression, LinearModel, sum_of
from pipeplan_formulations.common.mode import Mode
from pipeplan_formulations.common.scaling import Scale

Switches = dict[int, Expression]
Option = TypeVar("Option", bound=tuple[int, ...])


class Frame:
    """Rows for everything except T: layers, modes, in-flight counts, memory and hops of each stage."""

    def __init__(self, problem: ChainAllocation, depth: int, scale: Scale, high: int) -> None:
        self.problem, self.depth, self.scale = problem, depth, scale
        self.rows = LinearModel()
        self.time = self.rows.time(0, high)
        self.rows.minimize(self.time)
        self.every_mode = [(c, problem.widths[w]) for c, w in problem.every_mode]
        self.ends: list[Switches] = []
        self.modes: list[dict[ModeKey, int]] = []
        self._place()
        self._choose()
        self._count()
        self._hold()
        self._link()

    def switch(self) -> Expression:
        """A new 0-1 variable."""
        return Expression({self.rows.boolean(): 1})

    def at_least(self, expression: Expression, least: int = 0, when: tuple[int, ...] = ()) -> None:
        """Add ``expression`` ≥ ``least``, enforced if every variable of ``when`` is 1."""
        self.rows.at_least(expression, least, when)

    def _equal(self, expression: Expression) -> None:
        self.rows.equal(expression)

    def _one_of(self, switches: Iterable[Expression], whole: Expression | int = 1) -> None:
        """Make the switches add up to ``whole``."""
        self._equal(sum_of(switches) - whole)

    def _place(self) -> None:
        """Put each layer on one stage: stages in order, none empty, boundaries at allowed cuts only."""
        n = self.problem.layers
        y = [[self.switch() for _ in range(n)] for _ in range(self.depth - 1)]
        none, all_ = [Expression({})] * n, [Expression({}, 1)] * n
        steps = [none, *y, all_]
        for row in y:
            for i in range(n - 1):
                self.at_least(row[i] - row[i + 1])
        self.x = [[later[i] - before[i] for i in range(n)] for before, later in pairwise(steps)]
        for inside in self.x:
            for layer in inside:
                self.at_least(layer)
            self.at_least(sum_of(inside), 1)
        for row in y:
            self.ends.append({c: row[c] - row[c + 1] for c in range(n - 1)})
            for c, end in self.ends[-1].items():
                if not self.problem.cuts[c]:
                    self.at_least(-end)

    def _choose(self) -> None:
        """Choose a mode for each stage, keeping forced ones; add its products with layers, and recomputed layers."""
        problem, n = self.problem, self.problem.layers
        self.on: list[dict[ModeKey, list[Expression]]] = []
        self.again: list[dict[ModeKey, dict[int, Expression]]] = []
        forced = dict(enumerate(problem.first))
        forced |= {self.depth - len(problem.last) + j: mode for j, mode in enumerate(problem.last)}
        for s in range(self.depth):
            self.modes.append({mode: self.rows.boolean() for mode in self.every_mode})
            chosen = {mode: Expression({v: 1}) for mode, v in self.modes[s].items()}
            self._one_of(chosen.values())
            if s in forced:
                self.at_least(chosen.get(forced[s], Expression({})), 1)
            self.on.append({mode: [self.switch() for _ in range(n)] for mode in self.every_mode})
            self.again.append({mode: {} for mode in self.every_mode})
            for i in range(n):
                self._one_of((self.on[s][mode][i] for mode in self.every_mode), self.x[s][i])
                for mode in self.every_mode:
                    self.at_least(chosen[mode] - self.on[s][mode][i])
                    if problem.recomputable[i]:
                        self.again[s][mode][i] = self.switch()
                        self.at_least(self.on[s][mode][i] - self.again[s][mode][i])

    def _count(self) -> None:
        """Count the units used from each stage on, within those available, and choose k of the in-flight rule."""
        problem = self.problem
        self.use = [
            [{u: self.switch() for u in range(int(units) + 1)} for units in problem.units] for _ in range(self.depth)
        ]
        self.holds: list[dict[tuple[ModeKey, int], int]] = []
        totals: list[Expression] = []
        for s in range(self.depth):
            for p, use in enumerate(self.use[s]):
                self._one_of(use.values())
                behind = self.use[s + 1][p] if s + 1 < self.depth else {}
                self._equal(
                    sum_of(u * switch for u, switch in use.items())
                    - sum_of(u * switch for u, switch in behind.items())
                    - Expression({v: self._mode(mode).takes[p] for mode, v in self.modes[s].items()})
                )
        for s in range(self.depth):
            flow = sum_of(Expression({v: w for (_, w), v in modes.items()}) for modes in self.modes[s:])
            self.holds.append({})
            for mode, chosen in self.modes[s].items():
                self._in_flight(s, mode, chosen, flow)
            totals.append(flow)
        if problem.chooses:
            self._non_increasing(totals)

    def _mode(self, mode: ModeKey) -> Mode:
        return self.problem.modes[mode[0]][self.problem.widths.index(mode[1])]

    def _in_flight(self, s: int, mode: ModeKey, chosen: int, total: Expression) -> None:
        """Add a switch for each k that stage s may have in a mode, tied to the flow from the stage on."""
        width, problem, counts = mode[1], self.problem, self._mode(mode)
        most, share = problem.most_flow, problem.share(width)
        possible = np.arange(width, most + 1)
        found = {}
        least, largest = (each.take(possible - width) for each in (counts.in_flight, counts.most_in_flight))
        for k in range(int(least.min(initial=1)), int(largest.max(initial=0)) + 1):
            reached = possible[(least <= k) & (k <= largest)]
            if not len(reached):
                continue
            switch = self.holds[s][mode, k] = self.rows.boolean()
            found[k] = Expression({switch: 1})
            self.at_least(total, int(reached[0]), (switch,))
            self.at_least(-total, -int(reached[-1]), (switch,))
        assert all(k <= share for k in found)
        self._one_of(found.values(), Expression({chosen: 1}))

    def _non_increasing(self, totals: list[Expression]) -> None:
        """Make counts non-increasing: each stage is *lean* (holds what SNO holds) or *rich*.

        A rich stage has no more excess than any stage before it that holds fewer than all its micro-batches.
        """
        share = self.problem.share
        most = self.problem.most_flow + share(1) * self.problem.widths[-1]  # more than any excess
        excess, supply = [], []
        for total, holds in zip(totals, self.holds, strict=True):
            units = {switch: k * width for ((_, width), k), switch in holds.items()}
            whole = {switch: 2 * most for ((_, width), k), switch in holds.items() if k == share(width)}
            excess.append(Expression(units) - total)
            supply.append(excess[-1] + Expression(whole))
        for t in range(1, self.depth):
            lean, rich = self.rows.boolean(), self.rows.boolean()
            self.at_least(Expression({lean: 1, rich: 1}), 1)
            for ((_, width), k), switch in self.holds[t].items():
                self.at_least(totals[t], (k - 1) * width + 1, (switch, lean))
            for s in range(t):
                self.at_least(supply[s] - excess[t], 0, (rich,))

    def _hold(self) -> None:
        """Add the memory limit for each stage, mode and k, once for each layer that may have the largest workspace."""
        problem = self.problem
        for s in range(self.depth):
            for (mode, k), switch in self.holds[s].items():
                on, again = self.on[s][mode], self.again[s][mode]
                resident = problem.resident[mode[0], problem.widths.index(mode[1])]
                saved, output, workspace, whole, received = (
                    table[mode[0]].tolist()
                    for table in (problem.saved, problem.output, problem.workspace, problem.again, problem.received)
                )
                stays = sum_of(int(resident[i]) * on[i] for i in range(problem.layers))
                held = sum_of(received[c] * end for c, end in (self.ends[s - 1] if s else {}).items())
                held = held + sum_of(saved[i] * on[i] for i in range(problem.layers))
                for i, layer in again.items():
                    held = held - (saved[i] - output[i]) * layer
                room = Expression({}, int(problem.limit[mode[0]])) - stays - k * held
                for i in range(problem.layers):
                    self.at_least(room - workspace[i] * on[i], 0, (switch,))
                for i, layer in again.items():
                    self.at_least(room - whole[i] * layer, 0, (switch,))

    def _link(self) -> None:
        """Express f, g and l of each hop, and ĝ before each stage, by switches for kinds, node crossings and cuts."""
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
            # f, g and l: one switch per hop, and per hop and cut.
            chosen, at = self._product(hops, self.ends[s])
            self.send.append(sum_of(int(problem.send[h][c]) * switch for (h, c), switch in at.items()))
            self.back.append(sum_of(int(problem.send_back[h][c]) * switch for (h, c), switch in at.items()))
            self.latency.append(sum_of(int(problem.latency[h]) * switch for h, switch in chosen.items()))
            # ĝ: by the kind behind, and the node crossing of a hop from the same kind.
            before = {
                (c, leaves): [self._kind(s + 1, c), *self._leaves(s + 1, c, c, leaves)]
                for c in range(problem.kinds)
                for leaves in (0, 1)
            }
            _, at_start = self._product(before, self.ends[s])
            self.into.append(sum_of(int(problem.least_back[h][c]) * switch for (h, c), switch in at_start.items()))
        nothing = Expression({})
        self.send, self.back, self.latency = ([*row, nothing] for row in (self.send, self.back, self.latency))

    def _kind(self, s: int, kind: int) -> Expression:
        """An expression that is 1 if stage s is of this kind, else 0."""
        return sum_of(Expression({v: 1}) for (c, _), v in self.modes[s].items() if c == kind)

    def _leaves(self, s: int, before: int, behind: int, leaves: int) -> list[Expression]:
        """The condition that a hop to stage s leaves a node (``leaves`` 1) or stays in it (0), as a sum of switches.

        A hop between different kinds always leaves a node, so it has no condition.
        """
        if before != behind:
            return []
        pool = int(self.problem.pool[behind])
        node = int(self.problem.node[pool])
        return [sum_of(switch for u, switch in self.use[s][pool].items() if (u % node == 0) == bool(leaves))]

    def _product(
        self, options: Mapping[Option, list[Expression]], ends: Switches
    ) -> tuple[dict[Option, Expression], dict[tuple[Option, int], Expression]]:
        """Switches of the options, one of which is chosen and meets its conditions, and their products with the cut."""
        chosen = {option: self.switch() for option in options}
        self._one_of(chosen.values())
        for option, conditions in options.items():
            for condition in conditions:
                self.at_least(condition - chosen[option])
        at = {(option, c): self.switch() for option in options for c in ends}
        for c, end in ends.items():
            self._one_of((at[option, c] for option in options), end)
        for (option, _), switch in at.items():
            self.at_least(chosen[option] - switch)
        return chosen, at
