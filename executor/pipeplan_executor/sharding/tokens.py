"""Tensors that are split along their tokens: recognised, flattened, and reduced from partial sums.

::

    (samples, tokens, …)     Shard(1)                                   rank 0 has the first tokens of every sample
    (samples · tokens, …)    _StridedShard(0, split_factor=samples)     the same numbers, for products

A plain ``Shard(0)`` of a matrix is something else, like the shard of a weight; so it must not come from flattening.
"""

from collections.abc import Sequence

from torch.distributed.tensor import DTensor, Placement, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from pipeplan_executor.sharding.parts import WHOLE, local, placed
from pipeplan_executor.sharding.sequence import Stream

TOKENS = (Shard(1),)
"""Placement of a tensor that is split along its tokens."""


def flat(stream: Stream) -> tuple[Placement, ...]:
    """Return the placement of a flattened tensor that is split along its tokens."""
    return (_StridedShard(0, split_factor=stream.samples),)


def is_flat(tensor: DTensor, streams: Sequence[Stream]) -> bool:
    """Return whether a matrix, or its transpose, is a flattened tensor that is split along tokens."""
    how = tensor.placements[0]
    return isinstance(how, _StridedShard) and any(
        how.split_factor in (each.samples, 1) and tensor.shape[how.dim] == each.rows for each in streams
    )


def is_split(tensor: DTensor, streams: Sequence[Stream], independent: int) -> bool:
    """Return whether an operand of a product of stacks of matrices is split along tokens.

    ``independent``: its first axes, along which products are independent.
    """
    how = tensor.placements[0]
    return (
        isinstance(how, Shard)
        and how.dim >= independent
        and any(tensor.shape[how.dim] == each.tokens for each in streams)
    )


def reshaped(tensor: DTensor, shape: Sequence[int], streams: Sequence[Stream]) -> DTensor | None:
    """Return a tensor that is split along tokens with its first two axes flattened, or divided again.

    Other changes of shape are torch's: None, except those of flattened tensors, which need the whole.
    """
    how, mesh = tensor.placements[0], tensor.device_mesh
    if isinstance(how, Shard) and how.dim < 2 and tensor.dim() > 2:
        known = whole_shape(shape, tensor.numel())
        for each in streams:
            lengths = (each.samples, each.tokens) if how.dim else (each.tokens, each.samples)
            if tuple(tensor.shape[:2]) == lengths and known[0] == each.rows:
                flattened = (_StridedShard(0, split_factor=each.samples if how.dim else 1),)
                return placed(tensor.to_local().reshape(-1, *known[1:]), mesh, flattened)
    if isinstance(how, _StridedShard) and how.dim == 0 and is_flat(tensor, streams):
        known = whole_shape(shape, tensor.numel())
        if known[0] == len(tensor):
            return placed(tensor.to_local().reshape(-1, *known[1:]), mesh, tensor.placements)
        each = next(each for each in streams if each.rows == len(tensor))
        if known[:2] == (each.samples, each.tokens) and how.split_factor == each.samples:
            return placed(tensor.to_local().reshape(each.samples, -1, *known[2:]), mesh, TOKENS)
        if known[:2] == (each.tokens, each.samples) and how.split_factor == 1:
            return placed(tensor.to_local().reshape(-1, *known[1:]), mesh, (Shard(0),))
        return placed(local(tensor, WHOLE).view(known), mesh, WHOLE)
    return None


def whole_shape(shape: Sequence[int], numbers: int) -> tuple[int, ...]:
    """Return a shape of so many numbers with the length that is left open."""
    known = 1
    for each in shape:
        known *= each if each >= 0 else 1
    return tuple(each if each >= 0 else numbers // max(known, 1) for each in shape)


def reduced(tensor: DTensor, stream: Stream) -> DTensor | None:
    """Return partial sums as sums that are split along tokens; None if the tensor has no tokens of the stream."""
    if tensor.dim() >= 3 and tensor.shape[:2] == stream:
        return placed(local(tensor, TOKENS), tensor.device_mesh, TOKENS)
    if tensor.dim() >= 2 and tensor.shape[0] == stream.rows:
        stacked = tensor.to_local().reshape(*stream, *tensor.shape[1:])
        part = local(placed(stacked, tensor.device_mesh, tensor.placements), TOKENS)
        return placed(part.flatten(0, 1), tensor.device_mesh, flat(stream))
    return None
