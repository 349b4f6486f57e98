"""Traceback: allocations from the tables of the dynamic programme, by choices that keep its value."""

import numpy as np

from pipeplan_formulations.allocation.best_first.transitions import transitions
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.place import Allocation, Place
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.allocation.suffix_bounds.suffix import ProgrammeTables
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.common.span_options import IMPOSSIBLE


def roots(tables: ProgrammeTables, most: int) -> list[tuple[int, int]]:
    """Kind of the first stage, and usage, of at most ``most`` allocations of least value with different usages."""
    kinds = tables.whole.argmin(axis=0)
    values = tables.whole.min(axis=0)
    usages = np.argsort(values, kind="stable")[:most]
    return [(int(kinds[usage]), int(usage)) for usage in usages if values[usage] < IMPOSSIBLE]


def quickest(tables: ProgrammeTables, most: int) -> tuple[int, int] | None:
    """Kind of the first stage, and usage, of the least A among values of ``most`` at most; None if there is none."""
    trips = np.where(tables.whole <= most, tables.whole_trip, IMPOSSIBLE)
    kind, usage = np.unravel_index(int(trips.argmin()), trips.shape)
    return (int(kind), int(usage)) if trips[kind, usage] < IMPOSSIBLE else None


def follow(
    problem: ChainAllocation,
    grid: Grid,
    spans: Spans,
    tables: ProgrammeTables,
    root: tuple[int, int],
    ceiling: int | None = None,
    most: int | None = None,
) -> tuple[int, Allocation] | None:
    """An allocation of a root that keeps its value, or ``most``, and a lower bound on its objective; None without any.

    ::

        value of the root ──────────────────────────────────────────────▶
        head so far ─────────▶│◀─ own ─▶│              a stage may follow if neither its own term
                              │◀─ advance ─▶│◀── V behind ──▶│     nor the value behind exceeds the root's

    Of the stages that may follow, the one of the least maximum of A + e and the own-ending bound is taken.
    """
    kind, usage = root
    value = int(tables.whole[kind, usage]) if most is None else most
    stages: list[Place] = []
    start = head = trip = way = ended = delay = largest_forward = 0
    twice = -IMPOSSIBLE
    backwards = (0,) * len(problem.widths)
    allowed = UNLIMITED
    while start < problem.layers:
        position = len(stages)
        # Stages that may follow, and the delay e of each with the stages so far.
        choice = transitions(problem, grid, spans, tables.possible, start, kind, usage, position, allowed)
        each = choice.delays(problem, largest_forward, backwards)
        if ceiling is not None:
            choice, each = choice.only(choice.delay <= ceiling), each[choice.delay <= ceiling]
        # Stages that keep the root's value.
        finish = choice.finish if start == 0 else np.zeros_like(choice.end)
        base = head + finish
        key = position, choice.end, choice.kind, choice.usage, choice.allowed
        ahead, alone = tables.behind(*key)
        combined = np.maximum(choice.own, ahead) if problem.endless else choice.advance + ahead
        fits = np.maximum(base + choice.own, base + combined) <= value
        cost = np.maximum(delay, each)
        again = np.maximum(twice, choice.twice(problem, trip + finish))
        if not problem.endless:
            whole = trip + finish + choice.trip + alone
            cost = np.maximum.reduce([cost + whole, 2 * whole + again, np.maximum(way, choice.wait) + choice.ended])
        if not fits.any():  # the tables hold only a lower bound here, which no stage reaches
            return None
        # Append the one of the least cost (bottleneck: the least e), and update the label.
        best = int(np.argmin(np.where(fits, cost, 2 * IMPOSSIBLE)))
        stages.append(Place(start, int(choice.end[best]), kind, int(choice.width[best]), int(choice.held[best])))
        head += int(choice.advance[best] + finish[best])
        trip += int(choice.trip[best] + finish[best])
        delay, twice = max(delay, int(each[best])), int(again[best])
        backwards = choice.backwards(problem, backwards, best)
        ended = max(ended, max(way, int(choice.wait[best])) + int(choice.ended[best]))
        way += int(choice.ahead[best])
        largest_forward = max(largest_forward, int(choice.work[best] - choice.backward[best]))
        allowed = int(choice.allowed[best])
        start, kind, usage = int(choice.end[best]), int(choice.kind[best]), int(choice.usage[best])
    return max(value, trip + delay, 2 * trip + twice, ended) if not problem.endless else value, tuple(stages)
