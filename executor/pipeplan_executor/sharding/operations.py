"""Operations that run on shards of tensors, with their traits; and attention on a CPU.

DTensor has rules for many more operations. Some of them are wrong where sizes are arguments (group norm), or made for
another use (convolutions sharded along the width of images). Those listed here are covered by random tests, except
attention on GPUs, which has not been run. All other operations gather.

Torch's DTensor has rules for attention on GPUs and none for attention on a CPU. `attend` implements the latter, for
queries, keys and values of which each tensor-parallel rank has some heads or samples.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from pipeplan_executor.sharding.parts import WHOLE, as_dtensor, local, mapped, placed

_ATEN = torch.ops.aten

_KEEPING_VALUES = frozenset(
    {_ATEN.view, _ATEN._unsafe_view, _ATEN.detach, _ATEN.alias, _ATEN.t, _ATEN.transpose, _ATEN.permute}
)
"""Operations that keep every value: partial sums pass through them unchanged."""

_PRODUCTS = {_ATEN.mm, _ATEN.addmm, _ATEN.bmm, _ATEN.baddbmm}
_SHAPES = {
    *(_ATEN.t, _ATEN.transpose, _ATEN.permute, _ATEN.expand, _ATEN.unsqueeze, _ATEN.squeeze),
    *(_ATEN.slice, _ATEN.select, _ATEN.split, _ATEN.split_with_sizes, _ATEN.unbind, _ATEN.stack, _ATEN.cat),
    *(_ATEN.slice_backward, _ATEN.select_backward),
}
COPIES = {
    *(_ATEN.clone, _ATEN._to_copy, _ATEN.copy_, _ATEN.zero_, _ATEN.fill_),
    *(_ATEN.zeros_like, _ATEN.ones_like, _ATEN.empty_like, _ATEN.full_like),
}
"""Operations that make or write a tensor like another one."""
_SUMS = {_ATEN.sum, _ATEN.mean}
_LAYERS = {
    *(_ATEN._softmax, _ATEN._safe_softmax, _ATEN._softmax_backward_data),
    *(_ATEN._log_softmax, _ATEN._log_softmax_backward_data),
    *(_ATEN.native_layer_norm, _ATEN.native_layer_norm_backward),
    *(_ATEN.embedding, _ATEN.embedding_dense_backward),
}
_ON_GPUS = {
    *(_ATEN._scaled_dot_product_flash_attention, _ATEN._scaled_dot_product_flash_attention_backward),
    *(_ATEN._scaled_dot_product_efficient_attention, _ATEN._scaled_dot_product_efficient_attention_backward),
    *(_ATEN._scaled_dot_product_cudnn_attention, _ATEN._scaled_dot_product_cudnn_attention_backward),
}
_BY_PARTS = frozenset({*_KEEPING_VALUES, *_PRODUCTS, *_SHAPES, *COPIES, *_SUMS, *_LAYERS, *_ON_GPUS})

_MULTIPLYING = frozenset({*_PRODUCTS, *_ON_GPUS, _ATEN._scaled_dot_product_flash_attention_for_cpu})
_MULTIPLYING |= {_ATEN._scaled_dot_product_flash_attention_for_cpu_backward}
VIEWS = (_ATEN.view.default, _ATEN._unsafe_view.default)
"""Changes of shape."""
TABLE_LOOKUP, TABLE_GRADIENT = _ATEN.embedding.default, _ATEN.embedding_dense_backward.default
DROPOUT = _ATEN.native_dropout.default

_FILLS = frozenset({_ATEN.bernoulli_, _ATEN.uniform_, _ATEN.normal_, _ATEN.exponential_, _ATEN.random_})


class Traits(NamedTuple):
    """Properties of an operation that decide how it is dispatched.

    Attributes
    ----------
    by_parts : bool
        It runs on shards, by DTensor's rule.
    keeps_values : bool
        It leaves every number unchanged.
    seeded : bool
        It may draw random numbers.
    writing : bool
        It writes into arguments.
    filling : bool
        It writes into arguments without reading them.
    multiplies : bool
        It is a product of matrices, or attention.
    combines : bool
        It is elementwise.
    """

    by_parts: bool
    keeps_values: bool
    seeded: bool
    writing: bool
    filling: bool
    multiplies: bool
    combines: bool


@cache
def traits(func: Any) -> Traits:
    """Return the traits of an operation."""
    packet = func.overloadpacket
    return Traits(
        packet in _BY_PARTS or torch.Tag.pointwise in func.tags,
        packet in _KEEPING_VALUES,
        torch.Tag.nondeterministic_seeded in func.tags,
        func._schema.is_mutable,
        packet in _FILLS,
        packet in _MULTIPLYING,
        torch.Tag.pointwise in func.tags,
    )


def draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an operation that may draw random numbers does: attention draws with dropout only."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            return bool(kwargs.get("dropout_p", args[place] if place < len(args) else argument.default_value))
    return True


def writes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the arguments that an operation writes into."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            if argument.name in kwargs:
                yield kwargs[argument.name]
            elif place < len(args):
                yield args[place]


ATTENTION = (
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default,
)
INDEPENDENT_AXES = (0, 1)
"""Axes along which shards are computed independently: samples and heads."""


def attend(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[DTensor, ...] | None:
    """Run attention on shards and return its sharded results; None if no tensor is sharded along samples or heads.

    The other tensors are sharded alike. A mask broadcasts, so every rank takes the part of it that its shard needs.
    """
    tensors = [each for each in args if isinstance(each, Tensor)]
    found = [(each.placements[0], each.device_mesh) for each in tensors if isinstance(each, DTensor)]
    cut, mesh = next(((p, mesh) for p, mesh in found if type(p) is Shard and p.dim in INDEPENDENT_AXES), (None, None))
    if cut is None or mesh is None or any(each.shape[cut.dim] % mesh.size() for each in tensors):
        return None
    parts = mapped(lambda tensor: _part(tensor, mesh, cut.dim), args)
    rest = dict(kwargs)
    if (mask := rest.get("attn_mask")) is not None:
        axis = cut.dim + mask.dim() - 4
        rest["attn_mask"] = _part(mask, mesh, axis if axis >= 0 and mask.shape[axis] > 1 else None)
    return tuple(placed(each, mesh, (cut,)) for each in func(*parts, **rest))


def independent_axes(func: Any) -> int:
    """Return the number of first axes along which an operation computes independently; 0 for products of matrices."""
    packet = func.overloadpacket
    return 0 if packet in (_ATEN.mm, _ATEN.addmm) else 1 if packet in _PRODUCTS else len(INDEPENDENT_AXES)


def drop(mesh: DeviceMesh, tensor: DTensor, probability: float, train: bool | None) -> tuple[DTensor, ...]:
    """Run dropout on shards. The mask is drawn for the whole tensor; every rank takes its part."""
    ones = torch.ones(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    scaled, mask = (_part_like(each, tensor, mesh) for each in _ATEN.native_dropout(ones, probability, train))
    return placed(tensor.to_local() * scaled, mesh, tensor.placements), placed(mask, mesh, tensor.placements)


def _part_like(whole: Tensor, tensor: DTensor, mesh: DeviceMesh) -> Tensor:
    return local(placed(whole, mesh, WHOLE), tensor.placements)


def _part(tensor: Tensor, mesh: DeviceMesh, axis: int | None) -> Tensor:
    return local(as_dtensor(tensor, mesh), WHOLE if axis is None else (Shard(axis),))
