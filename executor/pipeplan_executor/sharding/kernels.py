"""Torch's fused operations for attention, on CPUs and GPUs, under one signature: with the logarithms of the sums.

Which of them runs depends on the tensors, not on the operation that a model called: on a CPU the only one there is, on
GPUs flash attention for numbers of 16 bits without a mask, else the memory-efficient one. None draws random numbers
here, so what they keep for these is left empty.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

_ATEN = torch.ops.aten
ON_CPU = _ATEN._scaled_dot_product_flash_attention_for_cpu.default
_CPU_BACK = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default
_FLASH = _ATEN._scaled_dot_product_flash_attention.default
_FLASH_BACK = _ATEN._scaled_dot_product_flash_attention_backward.default
_EFFICIENT = _ATEN._scaled_dot_product_efficient_attention.default
_EFFICIENT_BACK = _ATEN._scaled_dot_product_efficient_attention_backward.default
_CUDNN = _ATEN._scaled_dot_product_cudnn_attention.default
_CUDNN_BACK = _ATEN._scaled_dot_product_cudnn_attention_backward.default
FORWARDS = frozenset({ON_CPU, _FLASH, _EFFICIENT, _CUDNN})
_ROWS, _ALIGNED = 32, 16
"""The memory-efficient operation has sums for a multiple of so many queries, and masks with rows of so many numbers."""


class Options(NamedTuple):
    """Arguments of attention that are no tensors to share out."""

    causal: bool
    mask: Any
    scale: float | None


def arguments_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of one of the operations by their names."""
    named = dict(kwargs)
    for place, argument in enumerate(func._schema.arguments):
        named.setdefault(argument.name, args[place] if place < len(args) else argument.default_value)
    return named


def options_of(named: Mapping[str, Any]) -> Options:
    """Return the options among these arguments."""
    return Options(bool(named["is_causal"]), named.get("attn_mask", named.get("attn_bias")), named["scale"])


def anywhere(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """Return attention as one of the operations computes it, by the one that suits the tensors.

    Programs are recorded on tensors without values of a CPU, so theirs is the CPU's, which no GPU can run.
    """
    named = arguments_of(func, args, kwargs)
    options = options_of(named)
    heads = named["query"], named["key"], named["value"]
    return scaled_dot_product_attention(*heads, options.mask, is_causal=options.causal, scale=options.scale)


def attend(query: Tensor, keys: Tensor, values: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """Return attention and, for each query of each head, the logarithm of the sum."""
    causal, mask, scale = options
    if not query.is_cuda:
        found = ON_CPU(query, keys, values, 0.0, causal, attn_mask=mask, scale=scale)
    elif _is_flash(query, mask):
        found = _FLASH(query, keys, values, 0.0, causal, False, scale=scale)
    else:
        found = _EFFICIENT(query, keys, values, _bias(query, keys, mask), True, 0.0, causal, scale=scale)
    return found[0], found[1][..., : query.shape[-2]]


def attend_back(
    gradient: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    found: tuple[Tensor, Tensor],
    options: Options,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of queries, keys and values; ``found``: what `attend` returned, here or of more keys."""
    (made, sums), (causal, mask, scale) = found, options
    if not query.is_cuda:
        back = _CPU_BACK(gradient, query, keys, values, made, sums, 0.0, causal, attn_mask=mask, scale=scale)
    elif _is_flash(query, mask):
        lengths, none = (query.shape[-2], keys.shape[-2]), torch.zeros(2, dtype=torch.uint64, device=query.device)
        given = gradient, query, keys, values, made, sums.contiguous()
        back = _FLASH_BACK(*given, None, None, *lengths, 0.0, causal, none, none, scale=scale)
    else:
        none = torch.zeros((), dtype=torch.int64, device=query.device)
        rows = pad(sums, (0, -sums.shape[-1] % _ROWS), value=torch.inf)
        tensors = gradient, query, keys, values, _bias(query, keys, mask), made, rows
        back = _EFFICIENT_BACK(*tensors, none, none, 0.0, [True, True, True, False], causal, scale=scale)
    return back[0], back[1], back[2]


def _is_flash(query: Tensor, mask: Any) -> bool:
    return mask is None and query.dtype in (torch.float16, torch.bfloat16)


def _bias(query: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return a mask of full shape whose rows begin at aligned places."""
    if mask is None:
        return None
    shape = (*query.shape[:-1], keys.shape[-2])
    whole = pad(mask.expand(*mask.shape[:-1], shape[-1]), (0, -shape[-1] % _ALIGNED))
    return whole[..., : shape[-1]].expand(shape)
