"""Ring attention: keys and values go round the members of a team, block by block (Liu et al., 2023, arXiv 2310.01889).

A member has the queries, keys and values of its own tokens. In each of T steps it attends to one block of keys, while
this block goes to the next member and another one comes from the member before. In the backward the block comes again,
and one step behind it the gradient of its keys and values, to which each member adds its own part; the last one sends
it home::

    team of 3    step 0         step 1                   step 2                  behind
    computes     own block      the one before           the one before that
    forward      a block ▶      a block ▶
    backward     a block ▶      a block, a gradient ▶    a gradient ▶            a gradient ▶

Of causal attention the member with the last tokens works longest: half a block first, then T − 1 whole ones.
"""

from collections.abc import Sequence
from itertools import zip_longest

from pipeplan.core.cluster import Link

BUFFERS = 5
"""Blocks of keys and values that a member has in a backward beside its own: the one at hand and the next, two gradients
that come and go, and what it adds."""


def messages(team: int, back: bool) -> tuple[int, ...]:
    """Return how many blocks, or gradients of blocks, a member sends in each step, and behind the last one."""
    return (1, *[2] * (team - 2), 1, 1) if back else (1,) * (team - 1)


def ring_time(time: int, shares: Sequence[int], sent: Sequence[int]) -> int:
    """Return the nanoseconds of a pass: each step takes as long as its block or its message, whichever is longer.

    ``time``: of the attention alone, on the member that works longest; ``shares``: of this, of each step; ``sent``: of
    each of `messages`.
    """
    blocks = [-(-time * share // sum(shares)) for share in shares]
    return sum(max(both) for both in zip_longest(blocks, sent, fillvalue=0))


def ring_passes(passes: Sequence[int], shares: Sequence[int], block: int, link: Link, has_gradient: bool) -> list[int]:
    """Return the nanoseconds of forward, backward and input gradient by ring, and of what else there is.

    Parameters
    ----------
    passes : sequence of int
        Of the attention alone, in this order.
    shares : sequence of int
        Of the work in each step.
    block : int
        Bytes of the keys and values that go round at a time.
    link : Link
        To the next member.
    has_gradient : bool
    """

    def longer(time: int, back: bool) -> int:
        counts = () if back and not has_gradient else messages(len(shares), back)
        sent = [(link.latency + link.in_collectives.occupancy(n * block)) * bool(block) for n in counts]
        return ring_time(time, shares, sent)

    forward, backward, input_gradient, *rest = passes
    return [longer(forward, False), longer(backward, True), longer(input_gradient, True), *rest]
