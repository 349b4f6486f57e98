"""A greedy balancer in BaPipe's style: fill to a target, with regard to the links, then repair for memory.

BaPipe (arXiv 2012.12544) published no code. This is our own implementation of its exploration as we understand it,
not a reproduction of its figures::

    target fill      stage s takes layers while that brings its time nearer to T*
    links            a cut that takes longer than T* to send is no cut: the layers beside it are one coarse block
    memory           a stage that is too full gives its outer block to a neighbour that has room

On devices that take W_s for all the work, T* is the time in which all of them together do it: 1 / T* = Σ_s 1 / W_s,
which is the mean W / S on equal devices.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from pipeplan.baselines.partitioners.balancer import Balancer, from_zero
from pipeplan.baselines.partitioners.room import make_room
from pipeplan.costs.chain import Array, Boundaries, Chain


def target(chain: Chain) -> Fraction:
    """T*, in nanoseconds: the time of a stage if work could be cut anywhere."""
    totals = [int(total) for total in (chain.forward + chain.backward).sum(axis=1)]
    return Fraction(0) if 0 in totals else 1 / sum((Fraction(1, total) for total in totals), start=Fraction(0))


def balance(chain: Chain, micro_batches: int) -> Boundaries:
    """Fill stage by stage, cut only where the link is fast enough, make room where memory is short.

    Where too few cuts can be sent within T* for all devices, fewer devices are used, the first of the row, and the
    stages of the others stay empty.

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
    """Stage by stage the allowed end whose load is nearest to the goal, the later of two equally near ones.

    ``edges[s]`` are the ends allowed to stage s, ascending; the last stage ends with the chain. None if no allowed ends
    fill all stages.
    """
    ends = []  # of every stage but the last, those that leave all stages behind it an allowed end
    limit = chain.layers
    for allowed in reversed(edges):
        kept = allowed[allowed < limit]
        if not len(kept):
            return None
        limit = int(kept[-1])
        ends.append(kept)
    sums = from_zero(chain.forward + chain.backward)
    boundaries = [0]
    for s, allowed in enumerate(reversed(ends)):
        start = boundaries[-1]
        loads = [(int(end), int(sums[s, end] - sums[s, start])) for end in allowed[allowed > start]]
        boundaries.append(min(loads, key=lambda choice: (abs(choice[1] - goal), -choice[0]))[0])
    return (*boundaries, chain.layers)


BALANCER = Balancer(
    "bapipe",
    "BaPipe-style greedy: target fill over cuts that the links can carry, then repair for memory",
    "our own implementation of BaPipe's exploration (arXiv 2012.12544) as we understand it; no code was published",
    balance,
)
