"""Operations that run on parts of tensors, with their traits; and attention on a CPU.

DTensor has rules for many more. Some of them are wrong where sizes are arguments (group norm), or made for another use
(convolutions cut along the width of images). Those listed here are held by random tests, but for attention on GPUs,
which nobody has run; all others gather.

For attention on GPUs torch's DTensor has rules; for the CPU's it has none, so `attend` has them here, for queries, keys
and values of which each member has some heads or samples.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from pipeplan_executor.sharding.parts import WHOLE, local, mapped, placed

_ATEN = torch.ops.aten

_ASIDE = frozenset({_ATEN.view, _ATEN._unsafe_view, _ATEN.detach, _ATEN.alias})
"""Behind them partial sums stay what they are."""

_PRODUCTS = {_ATEN.mm, _ATEN.addmm, _ATEN.bmm, _ATEN.baddbmm}
_SHAPES = {
    *(_ATEN.t, _ATEN.transpose, _ATEN.permute, _ATEN.expand, _ATEN.unsqueeze, _ATEN.squeeze),
    *(_ATEN.slice, _ATEN.select, _ATEN.split, _ATEN.split_with_sizes, _ATEN.unbind, _ATEN.stack, _ATEN.cat),
    *(_ATEN.slice_backward, _ATEN.select_backward),
}
_COPIES = {
    *(_ATEN.clone, _ATEN._to_copy, _ATEN.copy_, _ATEN.zero_, _ATEN.fill_),
    *(_ATEN.zeros_like, _ATEN.ones_like, _ATEN.empty_like, _ATEN.full_like),
}
_SUMS = {_ATEN.sum, _ATEN.mean}
_LAYERS = {
    *(_ATEN._softmax, _ATEN._softmax_backward_data, _ATEN._log_softmax, _ATEN._log_softmax_backward_data),
    *(_ATEN.native_layer_norm, _ATEN.native_layer_norm_backward),
    *(_ATEN.embedding, _ATEN.embedding_dense_backward),
}
_ON_GPUS = {
    *(_ATEN._scaled_dot_product_flash_attention, _ATEN._scaled_dot_product_flash_attention_backward),
    *(_ATEN._scaled_dot_product_efficient_attention, _ATEN._scaled_dot_product_efficient_attention_backward),
    *(_ATEN._scaled_dot_product_cudnn_attention, _ATEN._scaled_dot_product_cudnn_attention_backward),
}
_BY_PARTS = frozenset({*_ASIDE, *_PRODUCTS, *_SHAPES, *_COPIES, *_SUMS, *_LAYERS, *_ON_GPUS})

_FILLS = frozenset({_ATEN.bernoulli_, _ATEN.uniform_, _ATEN.normal_, _ATEN.exponential_, _ATEN.random_})


class Traits(NamedTuple):
    """What is to know of an operation.

    Attributes
    ----------
    by_parts : bool
        DTensor's rule for it is used.
    aside : bool
        It leaves every number as it is.
    seeded : bool
        It may draw random numbers.
    writing, filling : bool
        It writes into arguments; without reading them.
    """

    by_parts: bool
    aside: bool
    seeded: bool
    writing: bool
    filling: bool


@cache
def traits(func: Any) -> Traits:
    """Of an operation."""
    packet = func.overloadpacket
    return Traits(
        packet in _BY_PARTS or torch.Tag.pointwise in func.tags,
        packet in _ASIDE,
        torch.Tag.nondeterministic_seeded in func.tags,
        func._schema.is_mutable,
        packet in _FILLS,
    )


def draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether one that may draw does: attention draws with dropout only."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            return bool(kwargs.get("dropout_p", args[place] if place < len(args) else argument.default_value))
    return True


def writes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """The arguments that an operation writes into."""
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
_APART = (0, 1)
"""Axes along which parts are computed apart: samples and heads."""


def attend(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[DTensor, ...] | None:
    """Each member's part of what the operation makes; None if no tensor is cut along samples or heads.

    The others are cut alike; of a mask, which broadcasts, every member takes what its part needs.
    """
    tensors = [each for each in args if isinstance(each, Tensor)]
    found = [(each.placements[0], each.device_mesh) for each in tensors if isinstance(each, DTensor)]
    cut, mesh = next(((p, mesh) for p, mesh in found if type(p) is Shard and p.dim in _APART), (None, None))
    if cut is None or mesh is None or any(each.shape[cut.dim] % mesh.size() for each in tensors):
        return None
    parts = mapped(lambda tensor: _part(tensor, mesh, cut.dim), args)
    rest = dict(kwargs)
    if (mask := rest.get("attn_mask")) is not None:
        axis = cut.dim + mask.dim() - 4
        rest["attn_mask"] = _part(mask, mesh, axis if axis >= 0 and mask.shape[axis] > 1 else None)
    return tuple(placed(each, mesh, (cut,)) for each in func(*parts, **rest))


def _part(tensor: Tensor, mesh: DeviceMesh, axis: int | None) -> Tensor:
    there = tensor if isinstance(tensor, DTensor) else placed(tensor, mesh, WHOLE)
    return local(there, WHOLE if axis is None else (Shard(axis),))
