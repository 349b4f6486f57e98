"""Making room: a stage that is too full gives layers to a neighbour. The last step of the BaPipe-style balancer."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pipeplan.baselines.partitioners.balancer import NotApplicable, stage_loads
from pipeplan.core.units import format_bytes
from pipeplan.costs.chain import Array, Boundaries, Chain


def one_forward_one_backward(stages: int, micro_batches: int) -> tuple[int, ...]:
    """Micro-batches in flight on each stage under 1F1B: min(M, S − s)."""
    return tuple(min(micro_batches, stages - stage) for stage in range(stages))


def stage_bytes(chain: Chain, boundaries: Boundaries, in_flight: Sequence[int]) -> list[int]:
    """Bytes that each stage needs, its runtime included; no stage may be empty.

    Resident bytes + in flight × (saved + received input) + the largest workspace + runtime.
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
        ``edges[s]``: where stage s may end, ascending.

    Raises
    ------
    NotApplicable
        If an over-full stage has no neighbour with room for its outer block.

    Notes
    -----
    Of the moves after which the receiver fits, the one with the least largest load is made. A receiver always fits, so
    every move shrinks the over-full stages, and the moves come to an end.
    """
    in_flight = one_forward_one_backward(chain.stages, micro_batches)
    while True:
        need = stage_bytes(chain, boundaries, in_flight)
        excess = [used - int(limit) for used, limit in zip(need, chain.limit, strict=True)]
        full = int(np.argmax(excess))
        if excess[full] <= 0:
            return boundaries
        moves = [
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
    """(receiver, boundaries) after the giver's first or last block went to its neighbour; the giver keeps a layer."""
    start, end = boundaries[giver], boundaries[giver + 1]
    found = []
    if giver > 0:
        inside = edges[giver - 1][(edges[giver - 1] > start) & (edges[giver - 1] < end)]
        found += [(giver - 1, giver, int(edge)) for edge in inside[:1]]
    if giver < len(edges):
        inside = edges[giver][(edges[giver] > start) & (edges[giver] < end)]
        found += [(giver + 1, giver + 1, int(edge)) for edge in inside[-1:]]
    return [(receiver, (*boundaries[:i], edge, *boundaries[i + 1 :])) for receiver, i, edge in found]
