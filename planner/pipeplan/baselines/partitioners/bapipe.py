"""Greedy partitioner in BaPipe's style: fill to a target, cut where links are fast, then repair for memory.

BaPipe (arXiv 2012.12544) published no code. This is our own implementation of its exploration as we understand it,
not a reproduction of its figures::

    target fill      stage s takes layers while that brings its time nearer to T*
    links            a boundary whose tensor takes longer than T* is not allowed: the layers beside it form one block
    memory           a stage over its memory limit gives its outer block to a neighbour that has room

Device s takes time W_s for the whole model. T* is the time in which all devices together run it: 1 / T* = Σ_s 1 / W_s,
which is the mean W / S on equal devices.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np

from pipeplan.baselines.partitioners.partitioner import NotApplicable, Partitioner, prefix_sums, stage_loads
from pipeplan.core.cluster import Overlap
from pipeplan.core.units import format_bytes
from pipeplan.costs.chain import Array, Boundaries, Chain


def one_forward_one_backward(stages: int, micro_batches: int) -> tuple[int, ...]:
    """Return the micro-batches in flight on each stage under 1F1B: min(M, S − s)."""
    return tuple(min(micro_batches, stages - stage) for stage in range(stages))


def stage_bytes(chain: Chain, boundaries: Boundaries, in_flight: Sequence[int]) -> list[int]:
    """Return the bytes that each stage needs, its runtime included; no stage may be empty.

    They are static bytes + in flight × (saved + received input) + the largest workspace + runtime.
    """
    need = []
    for s, (a, b) in enumerate(pairwise(boundaries)):
        received = int(chain.boundary[s - 1, a - 1]) if a else 0
        held = int(chain.saved[s, a:b].sum()) + received
        fixed = chain.stays(s, a, b) + int(chain.workspace[s, a:b].max()) + int(chain.runtime[s])
        need.append(fixed + in_flight[s] * held)
    return need


def make_room(chain: Chain, micro_batches: int, boundaries: Boundaries, edges: Sequence[Array]) -> Boundaries:
    """Move whole blocks out of over-full stages until every stage fits, under 1F1B.

    Parameters
    ----------
    edges : sequence of array
        ``edges[s]``: boundaries at which stage s may end, ascending.

    Raises
    ------
    NotApplicable
        If an over-full stage has no neighbour with room for its outer block.

    Notes
    -----
    Of the moves after which the receiver fits, the one with the smallest maximum load is chosen. A receiver always
    fits, so every move shrinks the over-full stages, and the loop ends.
    """
    in_flight = one_forward_one_backward(chain.stages, micro_batches)
    while True:
        need = stage_bytes(chain, boundaries, in_flight)
        excess = [used - int(limit) for used, limit in zip(need, chain.limit, strict=True)]
        full = int(np.argmax(excess))  # the stage that exceeds its limit most
        if excess[full] <= 0:
            return boundaries
        moves = [  # boundaries after a move that leaves the receiver within its limit
            moved
            for receiver, moved in _moves(boundaries, full, edges)
            if stage_bytes(chain, moved, in_flight)[receiver] <= int(chain.limit[receiver])
        ]
        if not moves:
            raise NotApplicable(
                f"stage {full} needs {format_bytes(need[full])} of {format_bytes(int(chain.limit[full]))} under 1F1B "
                f"({in_flight[full]} in flight), and no neighbour has room for its outer layers"
            )
        boundaries = min(moves, key=lambda moved: max(stage_loads(chain, moved)))


def _moves(boundaries: Boundaries, giver: int, edges: Sequence[Array]) -> list[tuple[int, Boundaries]]:
    """Return (receiver, boundaries) for moving the giver's first or last block; the giver keeps a layer."""
    start, end = boundaries[giver], boundaries[giver + 1]
    found = []
    if giver > 0:
        inside = edges[giver - 1][(edges[giver - 1] > start) & (edges[giver - 1] < end)]
        found += [(giver - 1, giver, int(edge)) for edge in inside[:1]]
    if giver < len(edges):
        inside = edges[giver][(edges[giver] > start) & (edges[giver] < end)]
        found += [(giver + 1, giver + 1, int(edge)) for edge in inside[-1:]]
    return [(receiver, (*boundaries[:i], edge, *boundaries[i + 1 :])) for receiver, i, edge in found]


def target(chain: Chain) -> Fraction:
    """Return T* in nanoseconds: the time of a stage if work could be divided anywhere."""
    totals = [int(total) for total in (chain.forward + chain.backward).sum(axis=1)]
    return Fraction(0) if 0 in totals else 1 / sum((Fraction(1, total) for total in totals), start=Fraction(0))


def balance(chain: Chain, micro_batches: int) -> Boundaries:
    """Fill stage by stage, with boundaries only where the link is fast enough, then repair for memory.

    Where too few boundaries can be sent within T* for all devices, only the first devices are used, and the stages of
    the others stay empty.

    Raises
    ------
    NotApplicable
        If a stage stays over-full.
    """
    for depth in range(chain.stages, 1, -1):
        row = chain.head(depth)
        goal = target(row)
        edges = [1 + np.flatnonzero(row.send[link] <= int(goal)) for link in range(depth - 1)]
        filled = _fill(row, goal, edges)
        if filled is not None:
            return make_room(row, micro_batches, filled, edges) + (chain.layers,) * (chain.stages - depth)
    alone = make_room(chain.head(1), micro_batches, (0, chain.layers), [])
    return alone + (chain.layers,) * (chain.stages - 1)


def _fill(chain: Chain, goal: Fraction, edges: Sequence[Array]) -> Boundaries | None:
    """Choose, stage by stage, the allowed end whose load is nearest to the goal, the later of two equally near ones.

    ``edges[s]`` are the ends allowed to stage s, ascending; the last stage ends with the chain. None if no allowed ends
    fill all stages.
    """
    ends = []  # for every stage except the last, from the back: ends after which all later stages have an allowed end
    limit = chain.layers
    for allowed in reversed(edges):
        kept = allowed[allowed < limit]
        if not len(kept):
            return None
        limit = int(kept[-1])
        ends.append(kept)
    sums = prefix_sums(chain.forward + chain.backward)
    boundaries = [0]
    for s, allowed in enumerate(reversed(ends)):
        start = boundaries[-1]
        loads = [(int(end), int(sums[s, end] - sums[s, start])) for end in allowed[allowed > start]]
        boundaries.append(min(loads, key=lambda choice: (abs(choice[1] - goal), -choice[0]))[0])
    return (*boundaries, chain.layers)


BAPIPE = Partitioner(
    "bapipe",
    "BaPipe-style greedy: target fill over boundaries that the links can carry, then repair for memory",
    "our own implementation of BaPipe's exploration (arXiv 2012.12544) as we understand it; no code was published",
    balance,
)


def preferred_family(chain: Chain, micro_batches: int, boundaries: Boundaries) -> str:
    """Return the schedule family that BaPipe would choose for these boundaries, as we understand it.

    =============  =========================================================  =========
    overlap        condition                                                  family
    =============  =========================================================  =========
    none           —                                                          1f1b-sno
    copy           memory holds the doubled warm-up of 2(S − s) − 1           1f1b-so
    copy           it does not                                                1f1b-sno
    stream         a tensor takes longer to send than its forward takes,      fbp-as
                   and memory holds 2(S − s) in flight
    stream         otherwise                                                  1f1b-as
    =============  =========================================================  =========

    Empty stages are left out first.
    """
    kept = [s for s, (a, b) in enumerate(pairwise(boundaries)) if a < b]
    row = chain.select(tuple(kept))
    edges = (0, *(boundaries[s + 1] for s in kept))
    if row.overlap is Overlap.NONE:
        return "1f1b-sno"
    if row.overlap is Overlap.COPY:
        return "1f1b-so" if _fits(row, micro_batches, edges, spare=-1) else "1f1b-sno"
    link_bound = any(
        int(row.send[s, b - 1]) > int(row.forward[s, a:b].sum()) for s, (a, b) in enumerate(pairwise(edges[:-1]))
    )
    return "fbp-as" if link_bound and _fits(row, micro_batches, edges, spare=0, lanes=2) else "1f1b-as"


def _fits(row: Chain, micro_batches: int, edges: Boundaries, spare: int, lanes: int = 1) -> bool:
    """Return whether every stage can hold min(M, 2(S − s) + spare) micro-batches and a workspace for every lane."""
    in_flight = [min(micro_batches, 2 * (row.stages - s) + spare) for s in range(row.stages)]
    need = stage_bytes(row, edges, in_flight)
    second = [(lanes - 1) * int(row.forward_workspace[s, a:b].max()) for s, (a, b) in enumerate(pairwise(edges))]
    return all(used + more <= int(limit) for used, more, limit in zip(need, second, row.limit, strict=True))


PARTITIONERS = (BAPIPE,)
