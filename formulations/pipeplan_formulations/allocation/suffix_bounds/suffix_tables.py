"""Tables of the suffixes behind stages of one kind: V and A with the hop to them, in the dynamic programme."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeplan_formulations.allocation.instance import Array, ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.largest_backward import LargestBackward
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.allocation.terms import step_on
from pipeplan_formulations.common.recomputation import IMPOSSIBLE

Quantity = Literal["time", "load"]


@dataclass(frozen=True, slots=True)
class Sight:
    """What a run of the programme looks at.

    Attributes
    ----------
    quantity : 'time' or 'load'
    ceiling : int or None
        The largest e of (4) that is allowed.
    apart : bool
        Whether f is in a stage's own terms, so that what lies behind is kept apart by its kind.
    peak : LargestBackward or None
        Where the largest backward of all stages lies, for (5).
    """

    quantity: Quantity
    ceiling: int | None
    apart: bool
    peak: LargestBackward | None = None


@dataclass(frozen=True)
class Behind:
    """What lies behind a stage of one kind, by usage behind it and boundary: shape (size, n + 1).

    Attributes
    ----------
    value, trip : array
        The best V and A, with the hop there; `IMPOSSIBLE` where there is none.
    send : array, shape (2, n + 1), or None
        f by whether the hop leaves a node, where the stage's own terms need it.
    leaves : array of int, shape (size,)
        Which row of ``send`` a usage takes.
    hops : list of (kind behind, array of shape (2, n + 1))
        See `hop_between`.
    """

    value: Array
    trip: Array
    send: Array | None
    leaves: Array
    hops: list[tuple[int, Array]]


class Tail:
    """What lies behind stages of kind ``c``, filled usage by usage; with ``ends`` that may be nothing at all."""

    def __init__(self, problem: ChainAllocation, grid: Grid, sight: Sight, c: int, ends: bool) -> None:
        self._problem, self._grid, self._sight, self._kind = problem, grid, sight, c
        self._parts: dict[tuple[int, int], Behind] = {}
        self._keys = [self._key(w) for w in range(len(problem.widths))]
        self._kinds = list(range(problem.kinds)) if sight.apart else [0]
        for key in sorted(set(self._keys)):
            for behind in self._kinds:
                value, trip = (np.full((grid.size, problem.layers + 1), IMPOSSIBLE) for _ in range(2))
                if ends and behind == 0:
                    value[0, -1] = trip[0, -1] = 0
                send = self._send(behind) if sight.apart else None
                hops = [
                    (b, hop_between(problem, sight, c, b, key))
                    for b in ([behind] if sight.apart else range(problem.kinds))
                ]
                self._parts[key, behind] = Behind(value, trip, send, grid.leaves[behind], hops)

    def parts(self, w: int) -> list[Behind]:
        """What a stage whose width has index ``w`` chooses from."""
        return [self._parts[self._keys[w], behind] for behind in self._kinds]

    def extend(self, usages: Array, values: Array, trips: Array) -> None:
        """Take in V(c, ·, ·) and A(c, ·, ·) of these usages, shape (C, usages, n + 1), and the hops to them."""
        for part in self._parts.values():
            value, trip = (np.full(values.shape[1:], IMPOSSIBLE) for _ in range(2))
            for behind, each in part.hops:
                hop = each[self._grid.leaves[behind][usages] if behind == self._kind else np.ones_like(usages)]
                if self._sight.quantity == "load":
                    value = trip = np.minimum(value, np.maximum(values[behind], hop))
                else:
                    value = np.minimum(value, values[behind] + hop)
                    trip = np.minimum(trip, trips[behind] + hop)
            part.value[usages], part.trip[usages] = value, trip

    def _send(self, behind: int) -> Array:
        send = np.zeros((2, self._problem.layers + 1), np.int64)
        send[:, 1:-1] = self._problem.send[self._kind, behind]
        if behind != self._kind:
            send[0] = send[1]
        return send

    def _key(self, w: int) -> int:
        """Widths that see the same behind them share one table: by L_w, or all."""
        problem, width = self._problem, self._problem.widths[w]
        loads = self._sight.quantity == "load" and problem.overlap != "none"
        if loads or (self._sight.ceiling is not None and problem.overlap == "copy"):
            return problem.wire_shares[width]
        return 0


def hop_between(problem: ChainAllocation, sight: Sight, kind: int, behind: int, key: int) -> Array:
    """What a hop adds to V and A, or its load, by whether it leaves a node, and boundary: shape (2, n + 1).

    ``key`` is L_w, for loads and under a ceiling. `IMPOSSIBLE` at cuts that are not allowed or whose wire is
    too slow.
    """
    found = np.full((2, problem.layers + 1), IMPOSSIBLE)
    send, back = problem.send[kind, behind], problem.send_back[kind, behind]
    if sight.quantity == "load":
        hop = key * np.maximum(send, back) // problem.divisor if problem.overlap != "none" else np.zeros_like(send)
    else:
        step = step_on(problem.overlap, 0, send, back, problem.latency[kind, behind][:, None])
        hop = np.broadcast_to(step, send.shape)
        if sight.ceiling is not None and problem.overlap == "copy":
            hop = np.where((key - 1) * np.maximum(send, back) > sight.ceiling, IMPOSSIBLE, hop)
    found[:, 1:-1] = np.where(problem.cuts, hop, IMPOSSIBLE)
    return found
