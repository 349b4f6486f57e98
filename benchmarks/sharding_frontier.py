"""Operator sharding of transformer layers: frontiers, and back ends for the least time.

A layer has matrices qkv, proj, fc1 and fc2, attention, an activation function, and two sums on the residual stream.
Each axis of the mesh splits a matrix along the batch with the weights whole (M) or sharded (Z), along the columns (N)
or along the rows (K). It splits other operators along the batch, along the features or, except attention, not at all.
Collectives are rings with the latency and bandwidth of their axis. Times are processor seconds,
those of `least` seconds on the clock.

``-- frontier [LAYERSxMESH ...]``: frontiers of (time, memory). ``-- block [MESH ...]``: of a layer in five coordinates.
``-- least [LAYERSxMESH ...] [time=SECONDS]``: least time by the frontier, each back end and descents. A mesh is
``4.4.4``.
"""

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.sharding import (
    BACKENDS,
    Cap,
    Edge,
    Sharding,
    WeightedSharding,
    frontier,
    solve,
)
from pipeplan_formulations.sharding.instance import Array, possible

STARTS = 30
"""Random starts of descents."""
HIDDEN, TOKENS, ITEM = 4096, 2**18, 2
"""Width of the model, tokens of a step, bytes of a number."""
STATE = 14
"""Bytes of gradients and optimiser state per parameter, beside its own."""
SPEED = 150e12
"""Operations per second of a device."""
LINKS = (10_000, 12.5e9), (10_000, 12.5e9), (4_000, 150e9)
"""Latency in nanoseconds and bytes per second, of the last three axes."""
TIME_MEMORY = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 1, 1]])
"""Weights of forward, backward, once per step, bytes that stay and bytes held."""

Placements = tuple[str, ...]
"""For each axis: S (batch split), F (features split), R (whole), P (partial sums)."""
MATRIX = {"M": "SS", "Z": "SS", "N": "RF", "K": "FP"}
"""Placements of input and output for each word."""
BACK = {"M": "SS", "Z": "SS", "N": "FP", "K": "RF"}
"""Placements of the output's gradient that is needed, and of the input's gradient that is made."""


@dataclass(frozen=True)
class Block:
    """A graph with two ends; equal ones are chained one behind another.

    ::

        entry ─┬─ a ─── b ─┬─ exit          the exit of a block is the entry of the next; its costs are the exit's
               └───────────┘

    Attributes
    ----------
    problem : Sharding
    entry, exit : int
        Different operators, with as many signatures each.

    Raises
    ------
    ValueError
        If they are not.
    """

    problem: Sharding
    entry: int
    exit: int

    def __post_init__(self) -> None:
        count = len(self.problem.costs)
        if not (0 <= self.entry < count and 0 <= self.exit < count and self.entry != self.exit):
            raise ValueError(f"entry {self.entry} and exit {self.exit} must be two of the operators 0 to {count - 1}")
        many = [len(self.problem.costs[v]) for v in (self.entry, self.exit)]
        if many[0] != many[1]:
            raise ValueError(f"the entry has {many[0]} signatures and the exit {many[1]}; they must be the same ones")

    def repeated(self, count: int) -> Sharding:
        """Graph of ``count`` blocks: the operators of the first, then those of each further one but its entry."""
        if count < 1:
            raise ValueError(f"there must be at least one block, not {count}")
        costs, edges = list(self.problem.costs), list(self.problem.edges)
        last = self.exit
        for _ in range(1, count):
            number = {self.entry: last}
            for v, own in enumerate(self.problem.costs):
                if v != self.entry:
                    number[v] = len(costs)
                    costs.append(own)
            edges += [
                edge._replace(source=number[edge.source], target=number[edge.target]) for edge in self.problem.edges
            ]
            last = number[self.exit]
        return Sharding(tuple(costs), tuple(edges), self.problem.maxima)


class Operator(NamedTuple):
    """Words of each signature, placements of input, output, gradient needed, gradient made; costs."""

    inputs: list[Placements]
    outputs: list[Placements]
    needs: list[Placements]
    makes: list[Placements]
    costs: Array


class Mesh:
    """Axes of a team with their links."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes, self.links = tuple(sizes), LINKS[-len(sizes) :]

    @property
    def team(self) -> int:
        """Number of devices."""
        return int(np.prod(self.sizes))

    def ring(self, axis: int, rounds: int, size: float) -> float:
        """Nanoseconds of ``rounds`` times (n − 1) steps of a ring that each send 1 / n of ``size``."""
        n, (latency, bandwidth) = self.sizes[axis], self.links[axis]
        return rounds * (n - 1) * (latency + size / n / bandwidth * 1e9)

    def share(self, placements: Placements) -> float:
        """Share of a tensor that a device has."""
        return float(np.prod([1 / n if at in "SF" else 1 for n, at in zip(self.sizes, placements, strict=True)]))

    def redistribute(self, source: Placements, target: Placements, size: float) -> float:
        """Nanoseconds to change the placements of a tensor of ``size`` bytes, axis by axis, sums first."""
        local, total = size * self.share(source), 0.0
        for axis in sorted(range(len(self.sizes)), key=lambda axis: source[axis] != "P"):
            a, b, n = source[axis], target[axis], self.sizes[axis]
            if a == "P":
                total += self.ring(axis, 2 if b == "R" else 1, local)
                local /= 1 if b == "R" else n
            elif a != b and b == "R":
                local *= n
                total += self.ring(axis, 1, local)
            elif a != b and a == "R":
                local /= n
            elif a != b:
                total += self.ring(axis, 1, local)
        return total

    def matrix(self, rows: int, columns: int) -> Operator:
        """Product with a matrix of parameters."""
        words = list(product("MZNK", repeat=len(self.sizes)))
        costs = []
        for word in words:
            held = ITEM * TOKENS * rows * self.share(tuple(MATRIX[w][0] for w in word))
            weights = (
                ITEM
                * rows
                * columns
                * float(np.prod([1 / n for n, w in zip(self.sizes, word, strict=True) if w in "NK"]))
            )
            forward = 2e9 * TOKENS * rows * columns / self.team / SPEED
            backward, once, stay, gathered = 2 * forward, 0.0, weights, 0.0
            for axis, w in enumerate(word):
                if w == "Z":
                    forward += self.ring(axis, 1, weights)
                    backward += self.ring(axis, 2, weights)
                    stay /= self.sizes[axis]
                    gathered = weights
                elif w == "M":
                    once += self.ring(axis, 2, stay)
            costs.append([forward, backward, once, stay * (1 + STATE / ITEM), held, gathered])
        inputs, outputs, needs, makes = (
            [tuple(table[w][i] for w in word) for word in words] for table in (MATRIX, BACK) for i in (0, 1)
        )
        return Operator(inputs, outputs, needs, makes, np.array(costs).round().astype(np.int64))

    def other(self, kinds: str, keeps: float, operations: float) -> Operator:
        """Operator without parameters that works in any of some placements, and keeps so many numbers per token."""
        choices = list(product(kinds, repeat=len(self.sizes)))
        costs = []
        for placements in choices:
            forward = 1e9 * TOKENS * operations * self.share(placements) / SPEED
            costs.append([forward, 2 * forward, 0, 0, ITEM * TOKENS * keeps * self.share(placements), 0])
        return Operator(choices, choices, choices, choices, np.array(costs).round().astype(np.int64))

    def edge(self, operators: Sequence[Operator], u: int, v: int, width: int) -> Edge:
        """Redistribution of a tensor of ``width`` numbers per token, and of its gradient."""
        one, two, size = operators[u], operators[v], ITEM * TOKENS * width
        known: dict[tuple[Placements, Placements], int] = {}

        def price(source: Placements, target: Placements) -> int:
            if (source, target) not in known:
                known[source, target] = round(self.redistribute(source, target, size))
            return known[source, target]

        costs = np.zeros((len(one.costs), len(two.costs), 6), np.int64)
        for s, t in product(range(len(one.costs)), range(len(two.costs))):
            costs[s, t, :2] = price(one.outputs[s], two.inputs[t]), price(two.makes[t], one.needs[s])
        return Edge(u, v, costs)


def layer(mesh: Mesh) -> Block:
    """A transformer layer: six costs, of which the last, the workspace, is a maximum."""
    h = HIDDEN
    stream = mesh.other("SFR", h, 20 * h)
    operators = [
        stream,
        mesh.matrix(h, 3 * h),
        mesh.other("SF", 2 * h, 4 * 2048 * h),
        mesh.matrix(h, h),
        stream,
        mesh.matrix(h, 4 * h),
        mesh.other("SFR", 4 * h, 80 * h),
        mesh.matrix(4 * h, h),
        stream,
    ]
    widths = {(0, 1): h, (1, 2): 3 * h, (2, 3): h, (3, 4): h, (0, 4): h}
    widths |= {(4, 5): h, (5, 6): 4 * h, (6, 7): 4 * h, (7, 8): h, (4, 8): h}
    edges = tuple(mesh.edge(operators, u, v, width) for (u, v), width in widths.items())
    return Block(Sharding(tuple(op.costs for op in operators), edges, maxima=1), 0, 8)


def descents(problem: WeightedSharding, limits: Limits, starts: int) -> list[int | None]:
    """Return the values of block coordinate descents from random starts: the search of AutoDDL (arXiv 2301.06813).

    One operator gets its best signature while all others keep theirs, until nothing improves. None: no solution.
    """
    random, descent, clock = np.random.default_rng(limits.seed), _Descent(problem), Clock(limits)
    values = []
    for _ in range(starts):
        choice = random.integers(descent.counts).tolist()
        while clock.left > 0 and descent.sweep(choice):
            pass
        values.append(problem.evaluate(tuple(choice)))
    return values


class _Descent:
    """Tables of a problem by operator."""

    def __init__(self, problem: WeightedSharding) -> None:
        self._sums = problem.problem.sums
        self._problem = problem
        self.counts = [len(costs) for costs in problem.problem.costs]
        self._edges: list[list[tuple[int, int, Array]]] = [[] for _ in self.counts]
        for number, (u, v, costs) in enumerate(problem.problem.edges):
            self._edges[u].append((number, v, costs))
            self._edges[v].append((number, u, costs.transpose(1, 0, 2)))

    def sweep(self, choice: list[int]) -> bool:
        """Improve the choice in place, operator by operator; return True if it has changed."""
        parts = self._problem.problem.parts(choice)
        changed = False
        for v, costs in enumerate(self._problem.problem.costs):
            own = [v, *(len(self.counts) + number for number, _, _ in self._edges[v])]
            rest = np.delete(parts, own, axis=0)
            tables = np.stack([costs, *(table[:, choice[u]] for _, u, table in self._edges[v])])  # (parts, K, D)
            rank = self._rank(rest, tables)
            best = min(range(len(rank)), key=rank.__getitem__)
            if rank[best] < rank[choice[v]]:
                choice[v], changed = best, True
                parts[own] = tables[:, best]
        return changed

    def _rank(self, rest: Array, tables: Array) -> list[tuple[int, int, int]]:
        """For each signature: impossible parts, excess over all caps, objective."""
        bad = (~possible(tables)).sum(axis=0)
        plain = np.where(possible(tables)[..., None], tables, 0)
        others = rest[possible(rest)]
        sums = plain[..., : self._sums].sum(axis=0) + others[:, : self._sums].sum(axis=0)
        tops = np.maximum(plain[..., self._sums :].max(axis=0), others[:, self._sums :].max(axis=0, initial=0))
        total = np.concatenate([sums, tops], axis=1)
        excess = np.zeros(len(total), np.int64)
        for weights, limit in self._problem.binding:
            excess += np.maximum(total @ np.array(weights, np.int64) - limit, 0)
        value = sums @ np.array(self._problem.weights, np.int64)
        return list(zip(bad.tolist(), excess.tolist(), value.tolist(), strict=True))


def main() -> None:
    """Print the tables."""
    words = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    options = dict(word.split("=") for word in words if "=" in word)
    asked = [word for word in words if "=" not in word]
    for name, (show, rows) in {
        "frontier": (_frontier, ("4x4.4.4", "12x4.4.4", "24x4.4.4")),
        "block": (_block, ("8", "2.4", "2.2.2")),
        "least": (_least, ("4x4.4.4", "12x4.4.4", "24x4.4.4")),
    }.items():
        if not asked or asked[0] == name:
            for row in asked[1:] or rows:
                show(row, float(options.get("time", 30)))


def _stack(row: str) -> Sharding:
    """Layers of ``24x4.4.4``, with (time, memory) as costs."""
    layers, sizes = row.split("x")
    return layer(Mesh(list(map(int, sizes.split("."))))).repeated(int(layers)).project(TIME_MEMORY, maxima=False)


def _frontier(row: str, seconds: float) -> None:
    """Print size and time of the frontier of (time, memory), and its ends."""
    problem = _stack(row)
    began = time.process_time()
    found = frontier(problem, Clock(Limits(20 * seconds)))
    took = time.process_time() - began
    ends = " … ".join(f"{a / 1e6:,.1f} ms {b / 2**30:.2f} GiB" for a, b in found.points[[0, -1]].tolist())
    began = time.process_time()
    found.choice(0)
    print(f"frontier {row:10} {len(problem.costs):4} operators, {len(problem.edges)} edges: {len(found.points):5} "
          f"points in {took:6.2f} s, a choice in {time.process_time() - began:.2f} s; {ends}", flush=True)  # fmt: skip


def _block(row: str, seconds: float) -> None:
    """Print size and time of one layer's frontier in five coordinates, and with a known in-flight count."""
    problem = layer(Mesh(list(map(int, row.split("."))))).problem
    five = np.eye(5, dtype=np.int64)
    known = np.array([[1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 4]])
    for name, matrix, workspace in (("five", five, False), ("five, workspace", five, True), ("k = 4", known, False)):
        began = time.process_time()
        found = frontier(problem.project(matrix, workspace), Clock(Limits(20 * seconds)))
        print(
            f"block {row:6} {name:16} {len(found.points):6} points in {time.process_time() - began:6.2f} s", flush=True
        )


def _least(row: str, seconds: float) -> None:
    """Print the least time, without and with a cap on memory, by the frontier, each back end and descents."""
    problem = _stack(row)
    began = time.perf_counter()
    points = frontier(problem, Clock(Limits(20 * seconds))).points
    print(f"least {row:10} frontier, for every cap: {time.perf_counter() - began:.2f} s", flush=True)
    for share in (1.0, 0.75):
        limit = round(share * int(points[0, 1]))
        best = int(points[points[:, 1] <= limit][0, 0])
        print(f"least {row:10} memory {share:4.0%} frontier {best / 1e6:,.1f} ms", flush=True)
        question = WeightedSharding(problem, (1, 0), (Cap((0, 1), limit),))
        for backend in BACKENDS:
            began = time.perf_counter()
            report = solve(problem, question.weights, question.caps, Limits(seconds), backend=backend)
            value = "none" if report.objective is None else f"{report.objective / 1e6:,.1f} ms"
            print(f"least {row:10} memory {share:4.0%} {report.backend:8} {value:>11}, bound "
                  f"{report.bound / 1e6:9,.1f} ms, {report.status:10} "
                  f"{time.perf_counter() - began:6.2f} s", flush=True)  # fmt: skip
        gaps = [np.inf if value is None else value / best - 1 for value in descents(question, Limits(seconds), STARTS)]
        print(f"least {row:10} memory {share:4.0%} {STARTS} descents: best gap {min(gaps):.1%}, median "
              f"{statistics.median(gaps):.1%}, worst {max(gaps):.1%}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
