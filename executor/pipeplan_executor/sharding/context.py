"""Attention on parts of the tokens (context parallelism): each tensor-parallel rank has the queries of its own tokens.

::

    by keys     forward    gather keys and values ──▶ own queries, all keys ──▶ own tokens
                backward   gather them again ──▶ gradients of own queries, and parts of those of keys and values, which
                           are summed and scattered
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
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from pipeplan.core.plan import BY_HEADS
from pipeplan_executor.sharding.moves import shard_of
from pipeplan_executor.sharding.operations import ATTENTION
from pipeplan_executor.sharding.parts import WHOLE, all_gather, all_to_all, as_dtensor, local, placed, reduce_scatter

_BY = "pipeplan_attention"
HEADS, ROWS = 1, 2
"""Axes of queries, keys and values: heads, and tokens."""
_ON_HEADS, _ON_TOKENS = (Shard(HEADS),), (Shard(ROWS),)
FORWARD, BACKWARD = ATTENTION


class Options(NamedTuple):
    """Arguments of attention that are no tensors to share out."""

    causal: bool
    mask: Any
    scale: float | None


Block = tuple[Tensor, Tensor, bool, Any]
"""Keys, values, whether they are causal, and the mask."""


def mark_attention(query: Any, by: str) -> None:
    """Note on the queries, which autograd keeps, how their attention runs, for its backward."""
    setattr(query, _BY, by)


def marked_attention(func: Any, args: Sequence[Any]) -> str | None:
    """Return how the attention of a backward ran in the forward; None for other operations."""
    return getattr(args[1], _BY, None) if func is BACKWARD else None


def fits(args: Sequence[Any], by: str) -> bool:
    """Return whether attention without dropout can be divided: queries and keys are equally many, and so are parts."""
    query, key, value = args[:3]
    if not all(isinstance(each, DTensor) and each.dim() == 4 for each in (query, key, value)):
        return False
    size = query.device_mesh.size()
    tokens = query.shape[ROWS] == key.shape[ROWS] and query.shape[ROWS] % size == 0
    return tokens and (by != BY_HEADS or not any(each.shape[HEADS] % size for each in (query, key)))


def attend_forward(by: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[DTensor, ...]:
    """Run the forward of attention on parts of the tokens; return them and the logarithms of sums."""
    mesh, options = args[0].device_mesh, options_of(args, 3, kwargs)
    query, key, value = (shard_of(each, ROWS) for each in args[:3])
    if by == BY_HEADS:
        query, key, value = _to_heads((query, key, value), mesh)
        made, sums = _forward(query, _whole_block(key, value, options, mesh, HEADS), options)
        return placed(_to_tokens((made,), mesh)[0], mesh, _ON_TOKENS), placed(sums, mesh, _ON_HEADS)
    keys, values = _all_tokens((key, value), mesh)
    made, sums = attend_to(query, _blocks(query, keys, values, options, mesh), options)
    return placed(made, mesh, _ON_TOKENS), placed(sums, mesh, _ON_TOKENS)


def attend_backward(by: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[DTensor, ...]:
    """Run the backward of attention on parts of the tokens; return gradients of queries, keys and values."""
    mesh, options = args[1].device_mesh, options_of(args, 6, kwargs)
    gradient, query, key, value, made = (shard_of(as_dtensor(each, mesh), ROWS) for each in args[:5])
    sums = local(args[5], _ON_HEADS if by == BY_HEADS else _ON_TOKENS)
    if by == BY_HEADS:
        query, key, value = _to_heads((query, key, value), mesh)
        gradient, made = _to_heads((gradient, made), mesh)
        block = _whole_block(key, value, options, mesh, HEADS)
        found = _to_tokens(_backward(gradient, query, block, made, sums, options), mesh)
    else:
        keys, values = _all_tokens((key, value), mesh)
        found = list(_backward_by_keys(gradient, query, keys, values, made, sums, options, mesh))
    return tuple(placed(each, mesh, _ON_TOKENS) for each in found)


def _backward_by_keys(
    gradient: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    made: Tensor,
    sums: Tensor,
    options: Options,
    mesh: DeviceMesh,
) -> tuple[Tensor, ...]:
    blocks = _blocks(query, keys, values, options, mesh)
    to_query, *rest = attend_backward_to(gradient, query, keys, values, blocks, made, sums, options)
    return to_query, *_own_tokens(rest, mesh)


def attend_to(query: Tensor, blocks: Sequence[Block], options: Options) -> tuple[Tensor, Tensor]:
    """Return attention of queries to blocks of keys, and the logarithms of sums."""
    return _put_together([_forward(query, block, options) for block in blocks])


def attend_backward_to(
    gradient: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Sequence[Block],
    made: Tensor,
    sums: Tensor,
    options: Options,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of queries, and of all keys and values; blocks have these from the first one on."""
    to_query = torch.zeros_like(query)
    to_keys, to_values = torch.zeros_like(keys), torch.zeros_like(values)
    first = 0
    for block in blocks:
        own = _backward(gradient, query, block, made, sums, options)
        end = first + block[0].shape[ROWS]
        to_query += own[0]
        to_keys[:, :, first:end] += own[1]
        to_values[:, :, first:end] += own[2]
        first = end
    return to_query, to_keys, to_values


def _blocks(query: Tensor, keys: Tensor, values: Tensor, options: Options, mesh: DeviceMesh) -> list[Block]:
    """Return the keys that a rank's queries attend to: all, or with a causal mask those before them and their own."""
    if not options.causal:
        return [_whole_block(keys, values, options, mesh, ROWS)]
    length = query.shape[ROWS]
    first = mesh.get_local_rank() * length
    before = (keys.narrow(ROWS, 0, first), values.narrow(ROWS, 0, first), False, None)
    own = (keys.narrow(ROWS, first, length), values.narrow(ROWS, first, length), True, None)
    return [before, own] if first else [own]


def _whole_block(keys: Tensor, values: Tensor, options: Options, mesh: DeviceMesh, axis: int) -> Block:
    """Return all keys, with the part along an axis of a mask that broadcasts."""
    mask = options.mask
    if mask is not None:
        mask = as_dtensor(mask, mesh)
        own = axis + mask.dim() - 4
        mask = shard_of(mask, own) if own >= 0 and mask.shape[own] > 1 else local(mask, WHOLE)
    return keys, values, options.causal, mask


def _put_together(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return attention to several blocks of keys, from that to each of them and the logarithm of its sum."""
    (made, sums), *others = parts
    for other, own in others:
        both = torch.logaddexp(sums, own)
        made = made * (sums - both).exp().unsqueeze(-1) + other * (own - both).exp().unsqueeze(-1)
        sums = both
    return made.to(parts[0][0].dtype), sums


def _forward(query: Tensor, block: Block, options: Options) -> tuple[Tensor, Tensor]:
    keys, values, causal, mask = block
    made, sums = FORWARD(query, keys, values, 0.0, causal, attn_mask=mask, scale=options.scale)
    return made, sums


def _backward(
    gradient: Tensor, query: Tensor, block: Block, made: Tensor, sums: Tensor, options: Options
) -> tuple[Tensor, ...]:
    keys, values, causal, mask = block
    found: tuple[Tensor, ...] = BACKWARD(
        gradient, query, keys, values, made, sums, 0.0, causal, attn_mask=mask, scale=options.scale
    )
    return found


def options_of(args: Sequence[Any], place: int, kwargs: Mapping[str, Any]) -> Options:
    """Return the options among the arguments behind the tensors: dropout, which is none, and causality."""
    causal = args[place + 1] if len(args) > place + 1 else kwargs.get("is_causal", False)
    return Options(bool(causal), kwargs.get("attn_mask"), kwargs.get("scale"))


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
