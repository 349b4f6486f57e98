"""Messages of chunks between the replicas of a sum: a share that arrives in any case, and more until a deadline.

::

    from a peer   ┊ share in any case ┊ segment ┊ segment ┊ left out, and kept by the peer
    to the peer                    more ┘    more ┘ enough ┘  at the owner's deadline

The most important chunks come first. An owner asks for each segment of the rest, so no message is cancelled or late:
both sides know what has arrived. A peer that is gone breaks its connection, and one that stands still the timeout of
the group: both are errors.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

TAG = 2
"""Of these messages: sums without loss have 1."""
SEGMENT = 1 << 18
"""Bytes for which an owner asks at once: 2 ms at 1 Gbit/s, by which a deadline may be exceeded."""


class Offer(NamedTuple):
    """What a rank has for the owner of a part.

    Attributes
    ----------
    chunks : Tensor, [chunk, number]
    order : Tensor of int32, [chunk]
        Numbers of the chunks, the most important first.
    """

    chunks: Tensor
    order: Tensor


class Arrival(NamedTuple):
    """Chunks of one peer that have arrived at their owner.

    Attributes
    ----------
    numbers : Tensor of int32, [arrived]
    chunks : Tensor, [arrived, number]
    """

    numbers: Tensor
    chunks: Tensor


def exchange(
    offers: Mapping[int, Offer], own: int, least: Callable[[int], int], deadline: float, group: dist.ProcessGroup
) -> tuple[list[Arrival], dict[int, int]]:
    """Send every peer its chunks and receive those of this rank's part; every rank of the group calls this.

    Parameters
    ----------
    offers : mapping of int to Offer
        By rank of the peer in the group.
    own : int
        Number of chunks of this rank's part.
    least : callable
        Number of chunks that arrive in any case, by the number of all.
    deadline : float
        Seconds from now on in which this rank asks for more; 0 for never.

    Returns
    -------
    list of Arrival
        In the order of the peers.
    dict of int to int
        Number of chunks that each peer has got: the first ones in the order of its offer.

    Raises
    ------
    RuntimeError
        If a peer is gone, or stands still longer than the group's timeout.
    """
    if not offers:
        return [], {}
    sample = next(iter(offers.values())).chunks
    step = max(SEGMENT // (sample.shape[1] * sample.element_size()), 1)
    end = time.monotonic() + deadline
    sent = dict.fromkeys(offers, 0)
    found: dict[int, list[Arrival]] = {peer: [] for peer in offers}

    def move(outgoing: Mapping[int, int], incoming: Mapping[int, int]) -> None:
        """Send so many more chunks to peers, and receive so many from peers."""
        works = []
        for peer, count in incoming.items():
            arrival = Arrival(torch.arange(count, dtype=torch.int32), sample.new_empty(count, sample.shape[1]))
            works += _posted(group.recv, arrival, peer, whole=count == own)
            found[peer].append(arrival)
        for peer, count in outgoing.items():
            offer, start = offers[peer], sent[peer]
            whole = count == len(offer.order)
            numbers = offer.order[start : start + count]
            works += _posted(
                group.send, Arrival(numbers, offer.chunks if whole else offer.chunks[numbers]), peer, whole
            )
            sent[peer] += count
        _wait(works)

    move({peer: least(len(offer.order)) for peer, offer in offers.items()}, dict.fromkeys(offers, least(own)))
    owners, senders = ([*offers], [*offers]) if deadline else ([], [])
    while True:
        owners = [peer for peer in owners if sent[peer] < len(offers[peer].order)]
        senders = [peer for peer in senders if sum(len(each.numbers) for each in found[peer]) < own]
        if not owners and not senders:
            break
        more = torch.tensor([time.monotonic() < end], dtype=torch.uint8)
        asked = {peer: torch.empty(1, dtype=torch.uint8) for peer in owners}
        works = [group.send([more], peer, TAG) for peer in senders]
        _wait(works + [group.recv([wish], peer, TAG) for peer, wish in asked.items()])
        owners = [peer for peer in owners if asked[peer]]
        senders = senders if more else []
        left = own - sum(len(each.numbers) for each in found[senders[0]]) if senders else 0
        outgoing = {peer: min(step, len(offers[peer].order) - sent[peer]) for peer in owners}
        move(outgoing, dict.fromkeys(senders, min(step, left)))
    return [each for peer in offers for each in found[peer]], sent


def _posted(
    post: Callable[[list[Tensor], int, int], dist.Work], chunks: Arrival, peer: int, whole: bool
) -> list[dist.Work]:
    """Begin to send or receive chunks: with their numbers, unless they are the whole part, which is in order."""
    if not len(chunks.numbers):
        return []
    works = [] if whole else [post([chunks.numbers], peer, TAG)]
    return [*works, post([chunks.chunks], peer, TAG)]


def _wait(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()
