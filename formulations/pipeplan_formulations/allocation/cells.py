"""What a stage adds in the dynamic programme over suffixes, for all of its ends and usages at once."""

from functools import reduce

import numpy as np

from pipeplan_formulations.allocation.problem import Array, ChainAllocation
from pipeplan_formulations.allocation.tails import Sight
from pipeplan_formulations.allocation.terms import own, services
from pipeplan_formulations.recompute import IMPOSSIBLE


def of_rows(
    problem: ChainAllocation, sight: Sight, width: int, flights: range, forward: Array, backward: Array, extra: Array
) -> tuple[Array, Array]:
    """Own term and work of each k (rows, or one for all) and end."""
    many = problem.share(width)
    closed = extra >= IMPOSSIBLE
    backward = np.where(closed, 0, backward + extra)
    if sight.quantity == "load":
        loads = (forward + backward) // (width * problem.unit)
        return np.where(closed, IMPOSSIBLE, loads), np.zeros_like(loads[:1])
    if sight.ceiling is not None:
        held = problem.warm_up(np.array(flights)[:, None]) if problem.alternating else many
        lanes = services(problem.overlap, many, held, 1, forward, backward, 0, 0, 0)
        closed = closed | (reduce(np.maximum, lanes) > sight.ceiling)
    work = np.where(closed, IMPOSSIBLE, forward + backward)
    if sight.quantity == "trip":
        return np.zeros_like(work[:1]), work
    return np.where(closed, IMPOSSIBLE, own(problem.overlap, many, forward, backward, 0)), work


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
    """Value of each usage (rows) and end, where sends or ĝ are in a stage's own terms."""
    many, into = problem.share(width), into[:, None]
    closed = (backward >= IMPOSSIBLE) | (value >= IMPOSSIBLE)
    backward = np.where(closed, 0, backward)
    if sight.quantity == "load":
        load = own(problem.overlap, 1, forward, backward, send) + into
        return np.where(closed, IMPOSSIBLE, np.maximum(load // (width * problem.unit), value))
    if sight.ceiling is not None:
        held = problem.warm_up(flight[:, None]) if problem.alternating else many
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
