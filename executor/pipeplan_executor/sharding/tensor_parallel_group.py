"""`TensorParallelGroup`: a process's rank of the plan, its tensor-parallel rank, and its process groups."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


@dataclass(frozen=True)
class TensorParallelGroup:
    """Ranks and process groups of this process.

    Attributes
    ----------
    rank : int
        Rank of the plan.
    tensor_rank : int
        Number of this process among those of the rank, from 0.
    size : int
        Number of processes of every rank of the plan.
    column : ProcessGroup
        The processes of the same tensor-parallel rank; their ranks in it are the plan's.
    mesh : DeviceMesh or None
        The processes of this rank of the plan; None for a single one.
    """

    rank: int
    tensor_rank: int
    size: int
    column: dist.ProcessGroup
    mesh: DeviceMesh | None = None


_MADE: WeakKeyDictionary[dist.ProcessGroup, dict[tuple[str, int], DeviceMesh]] = WeakKeyDictionary()
"""Meshes by device and size, for every world: creating one takes time and threads, so it is created once."""


def find_tensor_parallel_group(size: int, device: torch.device) -> TensorParallelGroup:
    """Return the group of this process. Every process of the world calls this alike; ``size`` divides the world."""
    world = dist.group.WORLD
    assert world is not None
    process = dist.get_rank()
    if size == 1:
        return TensorParallelGroup(process, 0, 1, world)
    made = _MADE.setdefault(world, {})
    key = device.type, size
    if key not in made:
        shape = dist.get_world_size() // size, size
        made[key] = init_device_mesh(device.type, shape, mesh_dim_names=("pipeline", "tensor"))
    mesh = made[key]
    return TensorParallelGroup(process // size, process % size, size, mesh.get_group("pipeline"), mesh["tensor"])
