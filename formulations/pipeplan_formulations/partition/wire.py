"""What carries transfers of several pairs of replicas, or of two neighbouring links: equation (9).

::

    stage 0   d0 d1 d2        link 0: d0 d1 d2 ──card──▶ d4        the card of node 0 carries tensors of both links,
    stage 1   d3 │ d4         link 1: d3       ──card──▶ d5        one after the other
    stage 2      │ d5 d6
            node 0 │ node 1
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pipeplan_formulations.partition.terms import Number, Overlap

if TYPE_CHECKING:
    from pipeplan_formulations.partition.instance import Array, ChainPartition


@dataclass(frozen=True)
class Wire:
    """Something that transfers of a link, perhaps also of the next one, keep busy one after the other.

    Attributes
    ----------
    link : int
        s.
    busy : array of int, shape (n − 1,)
        V: for each cut, how long the transfers of link s in one direction keep it busy in a step.
    beyond : array of int, shape (n − 1,), optional
        V' of link s + 1 in the same direction; not where tensors stream.
    back : bool
        Whether gradients pass, not activations.
    """

    link: int
    busy: "Array"
    beyond: "Array | None" = None
    back: bool = False

    @property
    def stage(self) -> int:
        """The stage whose span decides e: the one between two links; for one link the sender's, s or s + 1."""
        return self.link + (self.beyond is not None or self.back)


class Hop(NamedTuple):
    """f, g and l of a link."""

    send: Number
    send_back: Number
    latency: Number


def delays_of_wires(
    problem: "ChainPartition",
    stage: int,
    forward: Number,
    backward: Number,
    into: Hop,
    out: Hop,
    busy: Callable[[int, "Array"], Number],
) -> Iterator[Number]:
    """e of (9) for each wire of the stage.

    Parameters
    ----------
    into, out : Hop
        The links before and behind the stage; zeros beyond the ends.
    busy : callable
        ``busy(link, row)``: the entry of the row for the cut at which the link lies.
    """
    for wire in problem.wires:
        if wire.stage != stage:
            continue
        total = busy(wire.link, wire.busy)
        if wire.beyond is not None:
            total = total + busy(wire.link + 1, wire.beyond)
        yield total - _alone(problem.overlap, wire, backward if wire.back else forward, into, out)


def _alone(overlap: Overlap, wire: Wire, action: Number, into: Hop, out: Hop) -> Number:
    """What of R lies between the start of the first transfer and the end of the last if there is one micro-batch."""
    if overlap == "stream":
        return action
    if wire.beyond is None:
        return into.send_back if wire.back else out.send
    if wire.back:
        return out.send_back + out.latency + action + into.send_back
    return into.send + into.latency + action + out.send
