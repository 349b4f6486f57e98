"""What lies behind stages of one kind, in the dynamic programme over suffixes: V with the hop to it."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeplan_formulations.allocation.problem import Array, ChainAllocation
from pipeplan_formulations.allocation.terms import step_on
from pipeplan_formulations.allocation.usage import Grid
from pipeplan_formulations.recompute import IMPOSSIBLE

Quantity = Literal["time", "trip", "load"]


@dataclass(frozen=True, slots=True)
class Sight:
    """What a run of the programme looks at.

    Attributes
    ----------
    quantity : 'time', 'trip' or 'load'
    ceiling : int or None
        The largest e of (4) that is allowed.
    apart : bool
        Whether f is in a stage's own terms, so that what lies behind is kept apart by its kind.
    """

    quantity: Quantity
    ceiling: int | None
    apart: bool


@dataclass(frozen=True)
class Behind:
    """What lies behind a stage of one kind, by usage behind it and boundary: shape (size, n + 1).

    Attributes
    ----------
    value : array
        The best V, with the hop there; `IMPOSSIBLE` where there is none.
    send : array, shape (2, n + 1), or None
        f by whether the hop leaves a node, where the stage's own terms need it.
    leaves : array of int, shape (size,)
        Which row of ``send`` a usage takes.
    """

    value: Array
    send: Array | None
    leaves: Array


class Tail:
    """What lies behind stages of kind ``c``, filled boundary by boundary; with ``ends`` that may be nothing at all."""

    def __init__(self, problem: ChainAllocation, grid: Grid, sight: Sight, c: int, ends: bool) -> None:
        self._problem, self._grid, self._sight, self._kind = problem, grid, sight, c
        self._parts: dict[tuple[int, int], Behind] = {}
        self._keys = [self._key(w) for w in range(len(problem.widths))]
        kinds = range(problem.kinds) if sight.apart else [0]
        for key in sorted(set(self._keys)):
            for behind in kinds:
                value = np.full((grid.size, problem.layers + 1), IMPOSSIBLE)
                send = None
                if sight.apart:
                    send = np.zeros((2, problem.layers + 1), np.int64)
                    send[:, 1:-1] = problem.send[c, behind]
                    if behind != c:
                        send[0] = send[1]
                self._parts[key, behind] = Behind(value, send, grid.leaves[behind])
            if ends:
                self._parts[key, 0].value[0, -1] = 0
        self._kinds = list(kinds)

    def parts(self, w: int) -> list[Behind]:
        """What a stage whose width has index ``w`` chooses from."""
        return [self._parts[self._keys[w], behind] for behind in self._kinds]

    def extend(self, i: int, values: Array) -> None:
        """Take in V(i, ·, ·), shape (C, size), and the hops to it."""
        problem, grid = self._problem, self._grid
        live = np.flatnonzero((values < IMPOSSIBLE).any(axis=0))
        for (key, apart), part in self._parts.items():
            best = np.full(len(live), IMPOSSIBLE)
            for behind in [apart] if self._sight.apart else range(problem.kinds):
                leaves = grid.leaves[behind][live] if behind == self._kind else np.ones_like(live)
                hop = self._kind, behind, leaves
                send, back = problem.send[hop][:, i - 1], problem.send_back[hop][:, i - 1]
                if self._sight.quantity == "load":
                    found = values[behind, live]
                    if problem.overlap != "none":
                        found = np.maximum(found, np.maximum(send, back) // key)
                else:
                    found = values[behind, live] + step_on(problem.overlap, 0, send, back, problem.latency[hop])
                    if self._sight.ceiling is not None and problem.overlap == "copy":
                        slow = (key - 1) * np.maximum(send, back) > self._sight.ceiling
                        found = np.where(slow, IMPOSSIBLE, found)
                best = np.minimum(best, found)
            part.value[live, i] = best

    def _key(self, w: int) -> int:
        """Widths that see the same behind them share one table: by L_w, or by the period of a wire, or all."""
        problem, width = self._problem, self._problem.widths[w]
        if self._sight.quantity == "load" and problem.overlap != "none":
            return problem.wire_loads[width]
        if self._sight.ceiling is not None and problem.overlap == "copy":
            return problem.wire_shares[width]
        return 0
