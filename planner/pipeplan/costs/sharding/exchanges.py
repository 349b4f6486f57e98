"""Collectives along one axis of a mesh: which one changes a placement into another, and how long it takes.

A placement along an axis is whole, a part of a sum, or the dimension of the tensor that is split::

    from             to whole      to a split dimension
    a part of a sum  all-reduce    reduce-scatter
    a dimension      all-gather    all-to-all
    whole            nothing       nothing
"""

from enum import StrEnum

from pipeplan.core.cluster import Link
from pipeplan.core.strategies import PARTIAL, WHOLE
from pipeplan.costs.collectives import all_reduce, alone


class Exchange(StrEnum):
    """Collectives that change the placements of a tensor."""

    SUM = "all-reduce"
    GATHER = "all-gather"
    SCATTER = "reduce-scatter"
    TURN = "all-to-all"
    SHIFT = "send-recv"


def collective(kind: Exchange, size: int, team: int, link: Link, sharing: int = 1) -> int:
    """Return the nanoseconds of a collective on a tensor of ``size`` bytes in all; none on an empty one.

    ``sharing``: members that send over one card at once where each sends every other one its part; in a ring one does.
    """
    if not size:
        return 0
    if kind is Exchange.TURN:
        part = link.in_collectives.occupancy(sharing * -(-size // team**2))
        return (team - 1) * (link.latency + part)
    ring = all_reduce(team, link)
    return alone(ring if kind is Exchange.SUM else ring.one_way, size)


def exchange(source: int, target: int) -> Exchange | None:
    """Return the collective by which a tensor gets other placements; None if members send nothing.

    A sum is an all-reduce, or a reduce-scatter where the target is split; what is split is gathered; from one axis to
    another each member sends every other one its part. Members drop parts of what is whole, or all but one drop it.
    """
    if source in (target, WHOLE):
        return None
    if source == PARTIAL:
        return Exchange.SUM if target == WHOLE else Exchange.SCATTER
    return Exchange.GATHER if target == WHOLE else Exchange.TURN


def redistribution_time(source: int, target: int, size: int, team: int, link: Link, sharing: int = 1) -> int | None:
    """Return the nanoseconds in which a tensor of ``size`` bytes in all gets other placements; None if it cannot.

    What is whole becomes a part of a sum without sending: that of one member is the whole, of the others nothing.
    ``sharing``: as in `collective`.
    """
    if target == PARTIAL and source not in (PARTIAL, WHOLE):
        return None
    kind = exchange(source, target)
    return 0 if kind is None else collective(kind, size, team, link, sharing)
