"""Tensors of which each member has a part: made from it, and taken apart again. Below autograd, which knows of neither.

The one door of this room to parts of DTensor that are not public: a new release may move them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._utils import compute_global_tensor_info

WHOLE = (Replicate(),)


def placed(part: Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """The tensor of which ``part`` is here.

    `DTensor.from_local` is a function of autograd's, and what an operation below it returns must not be.
    """
    if placements == WHOLE:
        meta = TensorMeta(part.shape, part.stride(), part.dtype)
    else:
        shape, stride = compute_global_tensor_info(part, mesh, placements)
        meta = TensorMeta(torch.Size(shape), tuple(stride), part.dtype)
    return DTensor(part, DTensorSpec(mesh, tuple(placements), tensor_meta=meta), requires_grad=False)


def local(tensor: DTensor, placements: Sequence[Placement]) -> Tensor:
    """What is here of a tensor that lies so: its own memory, where it does already."""
    with torch.no_grad():
        there = tensor if tensor.placements == tuple(placements) else tensor.redistribute(placements=placements)
        return there.to_local()


def is_whole(tensor: DTensor) -> bool:
    """Whether every member has all of it."""
    return bool(tensor.placements == WHOLE)
