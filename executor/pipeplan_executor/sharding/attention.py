"""Attention on a CPU for queries, keys and values of which each member has some heads or samples.

On GPUs torch's DTensor has rules for its kernels; for the CPU's it has none.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from pipeplan_executor.sharding.arguments import mapped
from pipeplan_executor.sharding.parts import WHOLE, local, placed

_ATEN = torch.ops.aten
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
