"""`TensorParallelGroup`: a process's rank of the plan, its number within the team, and its process groups."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


@dataclass(frozen=True)
class TensorParallelGroup:
    """The place of this process.

    Attributes
    ----------
    rank : int
        Of the plan.
    member : int
        Of the rank's processes; they count from 0.
    size : int
        How many members every rank has.
    column : ProcessGroup
        The processes of the same member number; their ranks in it are the plan's.
    mesh : DeviceMesh or None
        The members of this rank; None where there is one only.
    """

    rank: int
    member: int
    size: int
    column: dist.ProcessGroup
    mesh: DeviceMesh | None = None


_MADE: WeakKeyDictionary[dist.ProcessGroup, dict[tuple[str, int], DeviceMesh]] = WeakKeyDictionary()
"""Meshes by device and size, for every world: making one takes time and threads, so it is made once."""


def find_team(size: int, device: torch.device) -> TensorParallelGroup:
    """Of this process. Every process of the world calls this alike; ``size`` divides the world."""
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
