"""Allocations read back from the tables of the dynamic programme, by following the choices that keep its value."""

import numpy as np

from pipeplan_formulations.allocation.best_first.moves import moves
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.place import Allocation, Place
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.allocation.suffix_bounds.suffix import Layers
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.recomputation import IMPOSSIBLE
from pipeplan_formulations.common.sentinels import UNLIMITED


def roots(tables: Layers, most: int) -> list[tuple[int, int]]:
    """Kind of the first stage and usage of the allocations of least value, each usage once, at most so many."""
    kinds = tables.whole.argmin(axis=0)
    values = tables.whole.min(axis=0)
    usages = np.argsort(values, kind="stable")[:most]
    return [(int(kinds[usage]), int(usage)) for usage in usages if values[usage] < IMPOSSIBLE]


def follow(
    problem: ChainAllocation,
    grid: Grid,
    spans: Spans,
    tables: Layers,
    root: tuple[int, int],
    ceiling: int | None = None,
) -> tuple[int, Allocation] | None:
    """The allocation of a root that keeps its value and, of those, goes for a small A + e; first a bound on its value.

    ::

        value of the root ──────────────────────────────────────────────▶
        head so far ─────────▶│◀─ own ─▶│            a stage may follow if neither its own term
                              │◀─ on ─▶│◀── V behind ──▶│        nor what lies behind goes beyond
    """
    kind, usage = root
    value = int(tables.whole[kind, usage])
    stages: list[Place] = []
    start = head = service = front = 0
    peaks = (0,) * len(problem.widths)
    allowed = UNLIMITED
    while start < problem.layers:
        position = len(stages)
        choice = moves(problem, grid, spans, start, kind, usage, position, allowed)
        each = choice.services(problem, front, peaks)
        if ceiling is not None:
            choice, each = choice.only(choice.service <= ceiling), each[choice.service <= ceiling]
        base = head + (choice.finish if start == 0 else 0)
        key = position, choice.end, choice.kind, choice.usage, choice.allowed
        ahead, alone = tables.behind(*key)
        combined = np.maximum(choice.own, ahead) if problem.objective == "bottleneck" else choice.on + ahead
        fits = np.maximum(base + choice.own, base + combined) <= value
        cost = np.maximum(service, each)
        if problem.objective == "step":
            cost = cost + base + choice.on + alone
        if not fits.any():  # the tables were a bound here, not a value
            return None
        best = int(np.argmin(np.where(fits, cost, 2 * IMPOSSIBLE)))
        stages.append(Place(start, int(choice.end[best]), kind, int(choice.width[best]), int(choice.held[best])))
        head = head + int(choice.on[best]) + (int(choice.finish[best]) if start == 0 else 0)
        service, peaks = max(service, int(each[best])), choice.peaks(problem, peaks, best)
        front = max(front, int(choice.work[best] - choice.backward[best]))
        allowed = int(choice.allowed[best])
        start, kind, usage = int(choice.end[best]), int(choice.kind[best]), int(choice.usage[best])
    return max(value, head + service) if problem.objective == "step" else value, tuple(stages)
