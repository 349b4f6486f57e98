"""Ring attention: each rank attends to one block of keys and values after another, while they go round.

::

    step          0      1       …  T − 1    behind    rank r of T, in its step s, has the block of rank r − s
    forward       ▶ b    ▶ b
    backward      ▶ b    ▶ b, g  …  ▶ g      ▶ g       the gradient of a block follows it, one step behind

A causal mask lets a rank leave out blocks behind its own; it passes them on. Liu et al., 2023, arXiv 2310.01889.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pipeplan_executor.sharding.blocks import (
    ROWS,
    Attended,
    Block,
    attend_backward_to,
    attend_block,
    causal_blocks,
    empty_sum,
    joined,
    settled,
)
from pipeplan_executor.sharding.kernels import Options


class Ring(NamedTuple):
    """Ranks of a group, each of which sends to the next one."""

    group: dist.ProcessGroup
    size: int
    rank: int


def shift(parts: Sequence[Tensor], ring: Ring) -> Callable[[], list[Tensor]]:
    """Begin to send tensors to the next rank; what is returned waits for those of the rank before, of equal shapes."""
    group, size, rank = ring
    own = list(parts)
    found = [torch.empty_like(part) for part in own]
    after, before = (rank + 1) % size, (rank - 1) % size
    sends = [dist.P2POp(dist.isend, part, group=group, tag=n, group_peer=after) for n, part in enumerate(own)]
    receives = [dist.P2POp(dist.irecv, part, group=group, tag=n, group_peer=before) for n, part in enumerate(found)]
    begun = dist.batch_isend_irecv([*sends, *receives])

    def arrived() -> list[Tensor]:
        for each in begun:
            each.wait()
        own.clear()  # needed until it is sent
        return found

    return arrived


@dataclass(frozen=True)
class RingAttention:
    """Attention of each rank's queries to the keys and values of all ranks.

    Attributes
    ----------
    ring : Ring
        The ranks.
    blocks : callable
        What the rank's queries see of the keys and values of a rank, given its number: blocks from the first key on;
        none if they see none of them.
    scale : float or None
        Of the logits; by default that of the operation.
    """

    ring: Ring
    blocks: Callable[[int, Tensor, Tensor], list[Block]]
    scale: float | None

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Attended:
        """Return what a rank's queries have of all blocks."""
        found: Attended | None = None
        part = _joined((key, value))
        for step in range(self.ring.size):
            coming = shift([part], self.ring) if step + 1 < self.ring.size else None
            for block in self._blocks(step, _divided(part, (key, value))):
                made = attend_block(query, block, self.scale)
                found = made if found is None else joined(found, made)
            if coming is not None:
                (part,) = coming()
        assert found is not None, "a rank sees its own keys"
        return settled(found, query)

    def backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, found: Attended
    ) -> tuple[Tensor, ...]:
        """Return gradients of a rank's queries, keys and values; ``found``: what `forward` returned."""
        of_query = empty_sum(query)
        part, sums = _joined((key, value)), list[Tensor]()
        for step in range(self.ring.size):
            parts = [part] if step + 1 < self.ring.size else []
            coming = shift(parts + sums, self.ring)
            added: Tensor | None = None
            wholes = _divided(part, (key, value))
            if blocks := self._blocks(step, wholes):
                to_query, *to_part = attend_backward_to(gradient, query, wholes, blocks, found, self.scale)
                of_query += to_query
                added = _joined(to_part)
            *parts, before = [*coming(), None] if step == 0 else coming()
            if before is None:
                before = torch.zeros_like(part) if added is None else added
            elif added is not None:
                before += added
            part, sums = parts[0] if parts else part, [before]
        (home,) = shift(sums, self.ring)()
        return of_query.to(query.dtype), *_divided(home, (key, value))

    def _blocks(self, step: int, parts: Sequence[Tensor]) -> list[Block]:
        """Return what the rank's queries see in a step."""
        return self.blocks((self.ring.rank - step) % self.ring.size, *parts)


def ring_blocks(
    options: Options, rank: int, queries: int, before: int = 0
) -> Callable[[int, Tensor, Tensor], list[Block]]:
    """Return what a rank's queries see of the keys and values of each rank (`RingAttention`).

    Parameters
    ----------
    options : Options
        With the part of a mask for the queries.
    rank : int
    queries : int
        Their number.
    before : int
        Keys of the rank itself that stand before the first query.
    """

    def seen(number: int, keys: Tensor, values: Tensor) -> list[Block]:
        if options.causal:
            if number == rank:
                return causal_blocks((keys, values), before, queries)
            return [Block(keys, values, False)] if number < rank else []
        mask, length = options.mask, keys.shape[ROWS]
        if mask is not None and mask.shape[-1] > 1:
            mask = mask.narrow(-1, number * length, length)
        return [Block(keys, values, False, mask)]

    return seen


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the numbers of keys and values, which go round as one message."""
    return torch.cat([part.reshape(-1) for part in parts])


def _divided(numbers: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return keys and values, or their gradients, in the shapes of a rank's own."""
    rows = numbers.split([part.numel() for part in like])
    return [row.view(part.shape) for row, part in zip(rows, like, strict=True)]
