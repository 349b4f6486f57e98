"""The times of every span of layers that a stage could hold, as tables for the dynamic programmes.

::

    row    a = b_s, where the stage begins            table[i, j]: the stage that begins at starts[i]
    column b − a − 1, by how many layers it is long                and ends at starts[i] + 1 + j
"""

from dataclasses import dataclass

import numpy as np

from pipeplan_formulations.partition.problem import Array, ChainPartition
from pipeplan_formulations.partition.terms import advance, delays, load

NEVER = 2**61
"""A time that no partition reaches. Two of them still fit into int64."""


@dataclass(frozen=True)
class Spans:
    """Spans of stage s whose time may stay within some target; entries of spans that are closed are `NEVER`.

    Attributes
    ----------
    starts : array, shape (A,)
        Open starts.
    ends : array, shape (A, W)
        b of each entry (clipped to n in closed ones).
    work : array, shape (A, W)
        M w_s for 'step'; max(w_s, c_s) for 'bottleneck' (w_s where transfers do not overlap).
    advance : array, shape (A, W)
        H_{s+1} − H_s; behind the last stage R − H_s. U_0 is in it for stage 0.
    delay : array, shape (A, W)
        Largest e of (5) that belongs to the stage.
    update : array, shape (A, W) or int
        U_0 for stage 0, otherwise 0.
    """

    starts: Array
    ends: Array
    work: Array
    advance: Array
    delay: Array
    update: Array | int


def spans(problem: ChainPartition, s: int, starts: Array, last: Array, allowed: Array, target: int) -> Spans:
    """Spans of stage s from ``starts`` to ends that are ``allowed`` (bool, shape (n + 1,)) and at most ``last``.

    Spans whose compute alone, M times in a step, exceeds ``target`` are closed.
    """
    n, final = problem.layers, s == problem.stages - 1
    times = 1 if problem.objective == "bottleneck" else problem.micro_batches
    forward, backward, update = (problem.prefix[name][s] for name in ("forward", "backward", "update"))
    compute = forward + backward
    reach = np.searchsorted(compute, compute[starts] + target // times, side="right") - 1
    if final:
        reach = np.where(reach >= n, n, 0)
    reach = np.minimum(reach, last[s, starts])
    width = max(1, int((reach - starts).max(initial=1)))
    # The last stage has one end, n, and so one column.
    ends = np.full((len(starts), 1), n) if final else starts[:, None] + 1 + np.arange(width)
    closed = ends > reach[:, None]
    ends = np.minimum(ends, n)
    closed |= ~allowed[ends]
    f, b = (table[ends] - table[starts][:, None] for table in (forward, backward))
    nothing = np.zeros(n + 1, np.int64)
    sent, returned, busy = (
        _at_boundary(table[s]) if not final else nothing for table in (problem.send, problem.send_back, problem.link)
    )
    passed_back = _at_boundary(problem.send_back[s - 1])[starts][:, None] if s else 0
    per_batch = load(problem.overlap, f, b, sent[ends], passed_back)
    if problem.objective == "bottleneck":
        work = per_batch if problem.overlap == "none" else np.maximum(per_batch, busy[ends])
        return Spans(starts, ends, np.where(closed, NEVER, work), nothing, nothing, 0)
    grow = (
        per_batch if final else advance(problem.overlap, per_batch, int(problem.latency[s]), sent[ends], returned[ends])
    )
    delay = np.maximum.reduce(
        np.broadcast_arrays(*delays(problem.overlap, problem.micro_batches, f, b, sent[ends], passed_back))
    )
    updates = update[ends] - update[starts][:, None] if s == 0 else 0
    return Spans(
        starts,
        ends,
        np.where(closed, NEVER, problem.micro_batches * per_batch),
        np.where(closed, NEVER, grow + updates),
        np.where(closed, NEVER, delay),
        updates,
    )


def _at_boundary(cuts: Array) -> Array:
    """Times per cut c as times per boundary b = c + 1; 0 at both ends."""
    return np.concatenate([[0], cuts, [0]])
