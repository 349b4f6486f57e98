"""Suffix tables of the dynamic programme: V and A of the suffixes behind stages of one kind, with the hop to them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.largest_backward import LargestBackward
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.allocation.terms import head_step
from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.common.span_options import IMPOSSIBLE

Quantity = Literal["time", "load"]


@dataclass(frozen=True, slots=True)
class PassSettings:
    """Settings of one pass of the programme.

    Attributes
    ----------
    quantity : 'time' or 'load'
    ceiling : int or None
        The largest one-stage delay e that is allowed.
    by_kind : bool
        True if a stage's own terms contain f, so that suffixes behind it are kept separately by their kind.
    largest : LargestBackward or None
        Range of the largest backward of all stages, for the alternation bound.
    """

    quantity: Quantity
    ceiling: int | None
    by_kind: bool
    largest: LargestBackward | None = None


@dataclass(frozen=True)
class SuffixTable:
    """Suffixes behind stages of one kind, by usage behind the stage and boundary.

    Attributes
    ----------
    value, trip, cycle : array, shape (size, n + 1)
        The least V, A and K, with the hop to the suffix; `IMPOSSIBLE` where there is none. K is None where none counts.
    send : array, shape (2, n + 1), or None
        f inside a node (row 0) and between nodes (row 1), if the stage's own terms contain it.
    leaves : array of int, shape (size,)
        The row of ``send`` for each usage.
    hops : list of (kind behind, array of shape (2, n + 1))
        See `hop_between`.
    """

    value: Array
    trip: Array
    cycle: Array | None
    send: Array | None
    leaves: Array
    hops: list[tuple[int, Array]]


class SuffixTables:
    """Suffix tables behind stages of kind ``c``, filled usage by usage.

    There is one table for each group of widths with the same hops, and with `PassSettings.by_kind` one for each kind
    behind. With ``ends`` the suffix may be empty, behind the last stage.
    """

    def __init__(self, problem: ChainAllocation, grid: Grid, settings: PassSettings, c: int, ends: bool) -> None:
        self._problem, self._grid, self._settings, self._kind = problem, grid, settings, c
        self._parts: dict[tuple[int, int], SuffixTable] = {}
        self._keys = [self._key(w) for w in range(len(problem.widths))]
        self._kinds = list(range(problem.kinds)) if settings.by_kind else [0]
        for key in sorted(set(self._keys)):
            for behind in self._kinds:
                value, trip = (np.full((grid.size, problem.layers + 1), IMPOSSIBLE) for _ in range(2))
                cycle = value.copy() if problem.cycles else None
                if ends and behind == 0:
                    value[0, -1] = trip[0, -1] = 0
                    if cycle is not None:
                        cycle[0, -1] = -IMPOSSIBLE
                send = self._send(behind) if settings.by_kind else None
                hops = [
                    (b, hop_between(problem, settings, c, b, key))
                    for b in ([behind] if settings.by_kind else range(problem.kinds))
                ]
                self._parts[key, behind] = SuffixTable(value, trip, cycle, send, grid.leaves[behind], hops)

    def parts(self, w: int) -> list[SuffixTable]:
        """The suffix tables that apply to a stage whose width has index ``w``."""
        return [self._parts[self._keys[w], behind] for behind in self._kinds]

    def extend(self, usages: Array, values: Array, trips: Array, cycles: Array | None) -> None:
        """Add the suffixes of these usages, from V, A and K of shape (C, usages, n + 1), with the hops to them."""
        for part in self._parts.values():
            value, trip, cycle = (np.full(values.shape[1:], IMPOSSIBLE) for _ in range(3))
            for behind, each in part.hops:
                hop = each[self._grid.leaves[behind][usages] if behind == self._kind else np.ones_like(usages)]
                if self._settings.quantity == "load":
                    value = trip = np.minimum(value, np.maximum(values[behind], hop))
                else:
                    value = np.minimum(value, values[behind] + hop)
                    trip = np.minimum(trip, trips[behind] + hop)
                    cycle = cycle if cycles is None else np.minimum(cycle, cycles[behind] + hop)
            part.value[usages], part.trip[usages] = value, trip
            if part.cycle is not None:
                part.cycle[usages] = cycle

    def _send(self, behind: int) -> Array:
        """f of the hop to a kind, by 1 if it leaves a node (else 0) and boundary."""
        send = np.zeros((2, self._problem.layers + 1), np.int64)
        send[:, 1:-1] = self._problem.send[self._kind, behind]
        if behind != self._kind:
            send[0] = send[1]
        return send

    def _key(self, w: int) -> int:
        """The key of the width's table: L_w if hops depend on it, else 0 for all widths."""
        problem, width = self._problem, self._problem.widths[w]
        loads = self._settings.quantity == "load" and problem.overlap != "none"
        if loads or (self._settings.ceiling is not None and problem.overlap == "copy"):
            return problem.link_shares[width]
        return 0


def hop_between(problem: ChainAllocation, settings: PassSettings, kind: int, behind: int, key: int) -> Array:
    """The hop's contribution to V and A, or its load, shape (2, n + 1): inside and between nodes, by boundary.

    ``key`` is L_w, for loads and under a ceiling. `IMPOSSIBLE` at cuts that are not allowed, or whose link is too slow
    for the ceiling.
    """
    found = np.full((2, problem.layers + 1), IMPOSSIBLE)
    send, back = problem.send[kind, behind], problem.send_back[kind, behind]
    if settings.quantity == "load":
        hop = key * np.maximum(send, back) // problem.divisor if problem.overlap != "none" else np.zeros_like(send)
    else:
        step = head_step(problem.overlap, 0, send, back, problem.latency[kind, behind][:, None])
        hop = np.broadcast_to(step, send.shape)
        if settings.ceiling is not None and problem.overlap == "copy":
            hop = np.where((key - 1) * np.maximum(send, back) > settings.ceiling, IMPOSSIBLE, hop)
    found[:, 1:-1] = np.where(problem.cuts, hop, IMPOSSIBLE)
    return found
