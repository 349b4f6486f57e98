"""Attention of some queries to blocks of keys, and how blocks are put together.

A block's attention and the logarithm of its sums are enough to add those of other blocks. In a backward the sums over
all blocks are known, so that each block is computed by itself.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipeplan_executor.sharding.kernels import Options, attend, attend_back

HEADS, ROWS = 1, 2
"""Axes of queries, keys and values: heads, and tokens."""


class Block(NamedTuple):
    """Keys and values, whether queries see only those up to their own place, and a mask."""

    keys: Tensor
    values: Tensor
    causal: bool
    mask: Any = None


def causal_blocks(wholes: Sequence[Tensor], first: int, length: int) -> list[Block]:
    """Return what so many queries from a place on see of all keys and values under a causal mask."""
    keys, values = wholes
    before = Block(keys.narrow(ROWS, 0, first), values.narrow(ROWS, 0, first), False)
    own = Block(keys.narrow(ROWS, first, length), values.narrow(ROWS, first, length), True)
    return [before, own] if first else [own]


class Attended(NamedTuple):
    """What queries have of some blocks, and the logarithms of the sums: -inf where all keys are masked."""

    made: Tensor
    sums: Tensor


def attend_block(query: Tensor, block: Block, scale: float | None) -> Attended:
    """Return attention to one block; the operation for CPUs has sums of 1 where all keys are masked."""
    made, sums = attend(query, block.keys, block.values, Options(block.causal, block.mask, scale))
    if block.mask is not None and (unseen := block.mask.isneginf().all(-1)).any():
        sums = sums.masked_fill(unseen, -torch.inf)
    return Attended(made, sums)


def joined(one: Attended, other: Attended) -> Attended:
    """Return attention to the blocks of both."""
    sums = torch.logaddexp(one.sums, other.sums)
    finite = sums.masked_fill(sums.isneginf(), 0)
    own, added = ((each.sums - finite).exp().unsqueeze(-1) for each in (one, other))
    return Attended(one.made * own + other.made * added, sums)


def attend_to(query: Tensor, blocks: Sequence[Block], scale: float | None) -> Attended:
    """Return attention of queries to blocks of keys."""
    found = attend_block(query, blocks[0], scale)
    for block in blocks[1:]:
        found = joined(found, attend_block(query, block, scale))
    return settled(found, query)


def settled(found: Attended, query: Tensor) -> Attended:
    """Return attention to all blocks as the operation has it: in numbers like the queries', with sums as above."""
    return Attended(found.made.to(query.dtype), found.sums.masked_fill(found.sums.isneginf(), 0))


def attend_block_backward(
    gradient: Tensor, query: Tensor, block: Block, found: Attended, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values that one block has; ``found``: attention to all blocks."""
    options = Options(block.causal, block.mask, scale)
    return attend_back(gradient, query, block.keys, block.values, found, options)


def attend_backward_to(
    gradient: Tensor,
    query: Tensor,
    wholes: Sequence[Tensor],
    blocks: Sequence[Block],
    found: Attended,
    scale: float | None,
) -> tuple[Tensor, ...]:
    """Return gradients of queries, in 32 bits at least, and of all keys and values; blocks begin with the first key."""
    of_query, of_wholes, first = empty_sum(query), [torch.zeros_like(each) for each in wholes], 0
    for block in blocks:
        own, *rest = attend_block_backward(gradient, query, block, found, scale)
        of_query += own
        for whole, part in zip(of_wholes, rest, strict=True):
            whole.narrow(ROWS, first, part.shape[ROWS]).copy_(part)
        first += block.keys.shape[ROWS]
    return of_query, *of_wholes


def empty_sum(like: Tensor) -> Tensor:
    """Return zeros to which gradients of several blocks are added, in 32 bits at least."""
    return torch.zeros_like(like, dtype=torch.promote_types(like.dtype, torch.float32))
