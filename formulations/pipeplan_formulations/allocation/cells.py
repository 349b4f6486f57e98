"""What a stage adds in the dynamic programme over suffixes, for all of its ends and usages at once."""

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.problem import Array, ChainAllocation
from pipeplan_formulations.allocation.tails import Sight
from pipeplan_formulations.allocation.terms import own, services
from pipeplan_formulations.recompute import IMPOSSIBLE


@dataclass(frozen=True, slots=True)
class Rows:
    """What a stage adds, by k (rows, or one for all) and end.

    Attributes
    ----------
    term, work : array
        Its own term, and how far it moves the head on but for the hop.
    held : array or None
        Where k is a choice and matters: the least from the row's on with which the stage stays below the ceiling.
    """

    term: Array
    work: Array
    held: Array | None = None


def of_rows(
    problem: ChainAllocation, sight: Sight, width: int, flights: range, forward: Array, backward: Array, extra: Array
) -> Rows:
    """The terms of spans with the given ends, for each k of ``flights``."""
    many = problem.share(width)
    closed = extra >= IMPOSSIBLE
    backward = np.where(closed, 0, backward + extra)
    if sight.quantity == "load":
        loads = (forward + backward) // (width * problem.unit)
        return Rows(np.where(closed, IMPOSSIBLE, loads), np.zeros_like(loads[:1]))
    if sight.ceiling is not None:
        held = np.array(flights)[:, None] if problem.alternating else many
        lanes = services(problem.overlap, many, held, 1, forward, backward, 0, 0, 0)
        closed = closed | (reduce(np.maximum, lanes) > sight.ceiling)
    work = np.where(closed, IMPOSSIBLE, forward + backward)
    term = np.where(closed, IMPOSSIBLE, own(problem.overlap, many, forward, backward, 0))
    if sight.quantity == "trip":
        term = np.zeros_like(work[:1])
    if problem.chooses and sight.ceiling is not None and len(work) > 1:
        return _least_open(term, work, flights, closed)
    return Rows(term, work)


def _least_open(term: Array, work: Array, flights: range, closed: NDArray[np.bool_]) -> Rows:
    """Each row by the first one from it on that is not closed: more in flight never means less work."""
    last = len(work) - 1
    rows = np.where(closed, last + 1, np.arange(last + 1)[:, None])
    first = np.minimum.accumulate(rows[::-1])[::-1]
    row = np.minimum(first, last)
    work = np.take_along_axis(work, row, axis=0)
    if len(term) > 1:
        term = np.take_along_axis(term, row, axis=0)
    return Rows(term, work, first + flights.start)


def of_cells(
    problem: ChainAllocation,
    sight: Sight,
    width: int,
    forward: Array,
    backward: Array,
    flight: Array,
    send: Array,
    into: Array,
    value: Array,
) -> Array:
    """Value of each usage (rows) and end, where sends or ĝ are in a stage's own terms.

    Where k is a choice, memory counts the least and the warm-up, ``flight``, the largest: a bound.
    """
    many, into = problem.share(width), into[:, None]
    closed = (backward >= IMPOSSIBLE) | (value >= IMPOSSIBLE)
    backward = np.where(closed, 0, backward)
    if sight.quantity == "load":
        load = own(problem.overlap, 1, forward, backward, send) + into
        return np.where(closed, IMPOSSIBLE, np.maximum(load // (width * problem.unit), value))
    if sight.ceiling is not None:
        held = flight[:, None] if problem.alternating else many
        wires = problem.wire_shares[width]
        lanes = services(problem.overlap, many, held, wires, forward, backward, send, 0, into)
        closed = closed | (reduce(np.maximum, lanes) > sight.ceiling)
    found = forward + backward + value
    if sight.quantity == "time":
        wait = (many - 1) * into if problem.overlap == "none" else 0
        found = np.maximum(found, own(problem.overlap, many, forward, backward, send) + wait)
    return np.where(closed, IMPOSSIBLE, found)


def of_first(problem: ChainAllocation, sight: Sight, c: int, w: int) -> Array:
    """E_0 of a first stage by its end."""
    if sight.quantity == "load":
        return np.zeros(problem.layers + 1, np.int64)
    reduction = problem.prefix["reduce"][c, w]
    base = np.where(reduction > 0, problem.reduce_base[c, w], 0)
    finish: Array = problem.prefix["update"][c, w] + reduction + base
    return finish
