"""Attention on parts of the tokens (context parallelism): each tensor-parallel rank has the queries of its own tokens.

::

    by keys     forward    gather keys and values ──▶ own queries, all keys ──▶ own tokens
                backward   gather them again ──▶ gradients of own queries, and parts of those of keys and values, which
                           are summed and scattered
    by ring     both       keys and values go round (`pipeplan_executor.sharding.ring`)
    by heads    forward    exchange tokens for heads ──▶ some heads, all tokens ──▶ exchange them back
                backward   the same for operands, and for output and gradient together ──▶ exchange gradients back

Autograd keeps the parts, so the backward sends operands again. Keys and values go in one collective, and all three
operands in one.

A causal mask without a tensor begins at the first of all tokens. Keys before a rank's own tokens are seen by all of its
queries, and of its own tokens a square is causal; both parts are put together by the logarithms of their sums::

    keys        before    own     behind
    queries     all       ◣       not computed
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from pipeplan.core.words import BY_HEADS, BY_RING
from pipeplan_executor.sharding.blocks import (
    HEADS,
    ROWS,
    Attended,
    Block,
    attend_backward_to,
    attend_block_backward,
    attend_to,
    causal_blocks,
)
from pipeplan_executor.sharding.kernels import BACKWARDS, Options, arguments_of, in_place_of, options_of
from pipeplan_executor.sharding.moves import shard_of
from pipeplan_executor.sharding.parts import (
    WHOLE,
    all_gather,
    all_to_all,
    as_dtensor,
    local,
    placed,
    reduce_scatter,
    ring_of,
)
from pipeplan_executor.sharding.ring import RingAttention, ring_blocks

_BY = "pipeplan_attention"
_ON_HEADS, _ON_TOKENS = (Shard(HEADS),), (Shard(ROWS),)


def mark_attention(query: Any, by: str) -> None:
    """Note on the queries, which autograd keeps, how their attention runs, for its backward."""
    setattr(query, _BY, by)


def marked_attention(func: Any, args: Sequence[Any]) -> str | None:
    """Return how the attention of a backward ran in the forward; None for other operations."""
    return getattr(args[1], _BY, None) if func in BACKWARDS else None


def fits(args: Sequence[Any], by: str) -> bool:
    """Return whether attention without dropout can be divided: queries and keys are equally many, and so are parts."""
    query, key, value = args[:3]
    if not all(isinstance(each, DTensor) and each.dim() == 4 for each in (query, key, value)):
        return False
    size = query.device_mesh.size()
    tokens = query.shape[ROWS] == key.shape[ROWS] and query.shape[ROWS] % size == 0
    return tokens and (by != BY_HEADS or not any(each.shape[HEADS] % size for each in (query, key)))


def attend_forward(func: Any, by: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Run the forward of attention on parts of the tokens; return them, and the logarithms of sums."""
    mesh, options = args[0].device_mesh, options_of(arguments_of(func, args, kwargs))
    query, key, value = (shard_of(each, ROWS) for each in args[:3])
    if by == BY_HEADS:
        query, key, value = _to_heads((query, key, value), mesh)
        block = Block(key, value, options.causal, _own_mask(options, mesh, HEADS))
        made, sums = attend_to(query, [block], options.scale)
        tokens = placed(_to_tokens((made,), mesh)[0], mesh, _ON_TOKENS)
        return in_place_of(func, (tokens, placed(sums, mesh, _ON_HEADS)))
    if by == BY_RING:
        found = _ring(query, options, mesh).forward(query, key, value)
    else:
        found = attend_to(query, _blocks(query, _all_tokens((key, value), mesh), options, mesh), options.scale)
    made, sums = found
    return in_place_of(func, (placed(made, mesh, _ON_TOKENS), placed(sums, mesh, _ON_TOKENS)))


def attend_backward(func: Any, by: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Run the backward of attention on parts of the tokens; return gradients of queries, keys and values."""
    named = arguments_of(func, args, kwargs)
    mesh, options, operands = args[1].device_mesh, options_of(named), (*args[:4], named["out"])
    gradient, query, key, value, made = (shard_of(as_dtensor(each, mesh), ROWS) for each in operands)
    attended = Attended(made, local(named["logsumexp"], _ON_HEADS if by == BY_HEADS else _ON_TOKENS))
    found: Sequence[Tensor]
    if by == BY_HEADS:
        query, key, value = _to_heads((query, key, value), mesh)
        gradient, made = _to_heads((gradient, made), mesh)
        block = Block(key, value, options.causal, _own_mask(options, mesh, HEADS))
        own = attend_block_backward(gradient, query, block, attended._replace(made=made), options.scale)
        found = _to_tokens(own, mesh)
    elif by == BY_RING:
        found = _ring(query, options, mesh).backward(gradient, query, key, value, attended)
    else:
        wholes = _all_tokens((key, value), mesh)
        blocks = _blocks(query, wholes, options, mesh)
        to_query, *rest = attend_backward_to(gradient, query, wholes, blocks, attended, options.scale)
        found = to_query.to(query.dtype), *_own_tokens(rest, mesh)
    return in_place_of(func, [placed(each, mesh, _ON_TOKENS) for each in found])


def _blocks(query: Tensor, wholes: Sequence[Tensor], options: Options, mesh: DeviceMesh) -> list[Block]:
    """Return the keys that a rank's queries attend to: all, or with a causal mask those before them and their own."""
    if not options.causal:
        return [Block(wholes[0], wholes[1], False, _own_mask(options, mesh, ROWS))]
    return causal_blocks(wholes, mesh.get_local_rank() * query.shape[ROWS], query.shape[ROWS])


def _ring(query: Tensor, options: Options, mesh: DeviceMesh) -> RingAttention:
    """Return the attention of a rank's queries, with the part of the mask for these."""
    ring, own = ring_of(mesh), options._replace(mask=_own_mask(options, mesh, ROWS))
    return RingAttention(ring, ring_blocks(own, ring.rank, query.shape[ROWS]), options.scale)


def _own_mask(options: Options, mesh: DeviceMesh, axis: int) -> Tensor | None:
    """Return the part along an axis of a mask that broadcasts."""
    if options.mask is None:
        return None
    mask = as_dtensor(options.mask, mesh)
    own = axis + mask.dim() - 4
    return shard_of(mask, own) if own >= 0 and mask.shape[own] > 1 else local(mask, WHOLE)


def _all_tokens(parts: Sequence[Tensor], mesh: DeviceMesh) -> list[Tensor]:
    """Return the tensors of which each rank has some tokens, gathered in one collective."""
    rows = all_gather(torch.cat([part.reshape(-1) for part in parts]), mesh)
    split = rows.split([part.numel() for part in parts], 1)
    return [_joined(own, part.shape, ROWS) for own, part in zip(split, parts, strict=True)]


def _own_tokens(wholes: Sequence[Tensor], mesh: DeviceMesh) -> list[Tensor]:
    """Return the sums of the ranks' tensors at this rank's tokens, from one collective."""
    rows = torch.cat([_divided(whole, ROWS, mesh) for whole in wholes], 1)
    own = reduce_scatter(rows, mesh).split([whole.numel() // mesh.size() for whole in wholes])
    return [each.view(_shape(whole.shape, ROWS, mesh)) for each, whole in zip(own, wholes, strict=True)]


def _to_heads(parts: Sequence[Tensor], mesh: DeviceMesh) -> list[Tensor]:
    """Return tensors of which each rank has some tokens as all tokens of some heads, by one all-to-all."""
    return _turned(parts, mesh, HEADS, ROWS)


def _to_tokens(parts: Sequence[Tensor], mesh: DeviceMesh) -> list[Tensor]:
    """Return tensors of which each rank has some heads as all heads of some tokens, by one all-to-all."""
    return _turned(parts, mesh, ROWS, HEADS)


def _turned(parts: Sequence[Tensor], mesh: DeviceMesh, split: int, joined: int) -> list[Tensor]:
    rows = all_to_all(torch.cat([_divided(part, split, mesh) for part in parts], 1), mesh)
    shapes = [_shape(part.shape, split, mesh) for part in parts]
    own = rows.split([part.numel() // mesh.size() for part in parts], 1)
    return [_joined(each, shape, joined) for each, shape in zip(own, shapes, strict=True)]


def _divided(tensor: Tensor, axis: int, mesh: DeviceMesh) -> Tensor:
    """Return the parts of a tensor along an axis, each as a row of numbers."""
    return torch.stack([each.reshape(-1) for each in tensor.chunk(mesh.size(), axis)])


def _joined(rows: Tensor, shape: Sequence[int], axis: int) -> Tensor:
    """Return rows of numbers as parts of this shape, joined along an axis."""
    return torch.cat([row.reshape(tuple(shape)) for row in rows.unbind(0)], axis)


def _shape(shape: Sequence[int], axis: int, mesh: DeviceMesh) -> tuple[int, ...]:
    return tuple(length // mesh.size() if n == axis else length for n, length in enumerate(shape))
