"""Ring attention: each rank attends to one block of keys and values after another, while they go round.

::

    step          0      1       …  T − 1    behind    rank r of T, in its step s, has the block of rank r − s
    forward       ▶ b    ▶ b
    backward      ▶ b    ▶ b, g  …  ▶ g      ▶ g       the gradient of a block follows it, one step behind

A causal mask lets a rank leave out blocks behind its own; it passes them on. Liu et al., 2023, arXiv 2310.01889.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from pipeplan_executor.sharding.blocks import (
    ROWS,
    Attended,
    Block,
    attend_block,
    attend_block_backward,
    empty_sum,
    joined,
    settled,
)
from pipeplan_executor.sharding.kernels import Options
from pipeplan_executor.sharding.parts import shift


@dataclass(frozen=True)
class RingAttention:
    """Attention of each rank's queries to the keys and values of all ranks.

    Attributes
    ----------
    mesh : DeviceMesh
        The ranks.
    options : Options
        With the part of a mask for this rank's queries.
    """

    mesh: DeviceMesh
    options: Options

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Attended:
        """Return what a rank's queries have of all blocks."""
        found: Attended | None = None
        block = _joined((key, value))
        for step in range(self.mesh.size()):
            coming = shift([block], self.mesh) if step + 1 < self.mesh.size() else None
            if (own := self._block(step, _divided(block, (key, value)))) is not None:
                made = attend_block(query, own, self.options.scale)
                found = made if found is None else joined(found, made)
            if coming is not None:
                (block,) = coming()
        assert found is not None, "a rank sees its own block"
        return settled(found, query)

    def backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, found: Attended
    ) -> tuple[Tensor, ...]:
        """Return gradients of a rank's queries, keys and values; ``found``: what `forward` returned."""
        of_query = empty_sum(query)
        block, sums = _joined((key, value)), list[Tensor]()
        for step in range(self.mesh.size()):
            blocks = [block] if step + 1 < self.mesh.size() else []
            coming = shift(blocks + sums, self.mesh)
            added: Tensor | None = None
            if (own := self._block(step, _divided(block, (key, value)))) is not None:
                to_query, *to_block = attend_block_backward(gradient, query, own, found, self.options.scale)
                of_query += to_query
                added = _joined(to_block)
            *blocks, before = [*coming(), None] if step == 0 else coming()
            if before is None:
                before = torch.zeros_like(block) if added is None else added
            elif added is not None:
                before += added
            block, sums = blocks[0] if blocks else block, [before]
        (home,) = shift(sums, self.mesh)()
        return of_query.to(query.dtype), *_divided(home, (key, value))

    def _block(self, step: int, parts: Sequence[Tensor]) -> Block | None:
        """Return the block of a step with the part of the mask for its keys; None if no query sees it."""
        keys, values = parts
        rank = self.mesh.get_local_rank()
        number, length = (rank - step) % self.mesh.size(), keys.shape[ROWS]
        if self.options.causal:
            return None if number > rank else Block(keys, values, step == 0)
        mask = self.options.mask
        if mask is not None and mask.shape[-1] > 1:
            mask = mask.narrow(-1, number * length, length)
        return Block(keys, values, False, mask)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the numbers of keys and values, which go round as one message."""
    return torch.cat([part.reshape(-1) for part in parts])


def _divided(numbers: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return keys and values, or their gradients, in the shapes of a rank's own."""
    rows = numbers.split([part.numel() for part in like])
    return [row.view(part.shape) for row, part in zip(rows, like, strict=True)]
