"""Conversion between DTensors and local shards below autograd; and traversal of the tensors among arguments.

All uses of DTensor's private names are here; a new release may move them. `mapped` and `tensors` traverse arguments
themselves, since torch's pytree functions take longer than the operation.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._utils import compute_global_tensor_info

WHOLE = (Replicate(),)


def placed(part: Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """Return the DTensor whose local shard is ``part``.

    `DTensor.from_local` is recorded by autograd; results of operations below autograd must not be.
    """
    if placements == WHOLE:
        meta = TensorMeta(part.shape, part.stride(), part.dtype)
    else:
        shape, stride = compute_global_tensor_info(part, mesh, placements)
        meta = TensorMeta(torch.Size(shape), tuple(stride), part.dtype)
    return DTensor(part, DTensorSpec(mesh, tuple(placements), tensor_meta=meta), requires_grad=False)


def local(tensor: DTensor, placements: Sequence[Placement]) -> Tensor:
    """Return the local shard of a tensor under these placements; no copy if it has them already."""
    with torch.no_grad():
        there = tensor if tensor.placements == tuple(placements) else tensor.redistribute(placements=placements)
        return there.to_local()


def is_whole(tensor: DTensor) -> bool:
    """Return whether every tensor-parallel rank has the whole tensor."""
    return bool(tensor.placements == WHOLE)


def mapped(change: Callable[[Tensor], Any], value: Any) -> Any:
    """Return the value with every tensor in it replaced by ``change(tensor)``."""
    if isinstance(value, Tensor):
        return change(value)
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([change(each) if isinstance(each, Tensor) else _within(change, each) for each in value])
    return {key: mapped(change, each) for key, each in value.items()} if kind is dict else value


def _within(change: Callable[[Tensor], Any], value: Any) -> Any:
    return mapped(change, value) if type(value) in (tuple, list) else value


def tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[DTensor]:
    """Return the DTensors among the arguments."""
    found = []
    for each in (*args, *kwargs.values()):
        if isinstance(each, DTensor):
            found.append(each)
        elif type(each) in (tuple, list):
            found += [one for one in each if isinstance(one, DTensor)]
    return found
