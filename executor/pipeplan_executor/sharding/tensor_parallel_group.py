"""`TensorParallelGroup`: a process's rank of the plan, its tensor-parallel rank, and the mesh of its team."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pipeplan_executor.sharding.mesh.moves import MeshAxes
from pipeplan_executor.sharding.processes import Processes


@dataclass(frozen=True)
class TensorParallelGroup:
    """Ranks of this process, and the processes that share its layers.

    Attributes
    ----------
    processes : Processes
        Those of all ranks of the plan.
    rank : int
        Rank of the plan.
    tensor_rank : int
        Number of this process among those of the rank, from 0.
    mesh : DeviceMesh or None
        The processes of this rank of the plan; None for a single one.
    axes : MeshAxes or None
        Its axes.
    """

    processes: Processes
    rank: int
    tensor_rank: int
    mesh: DeviceMesh | None = None
    axes: MeshAxes | None = None

    @property
    def size(self) -> int:
        """Number of processes of this rank."""
        return self.processes.sizes[self.rank]


Key = tuple[str, Processes, tuple[int, ...]]
_MADE: WeakKeyDictionary[dist.ProcessGroup, dict[Key, DeviceMesh | None]] = WeakKeyDictionary()
"""This process's mesh by device and processes, for every world: creating one takes time and threads, so it is once."""


def find_tensor_parallel_group(
    processes: Processes, device: torch.device, sizes: tuple[int, ...] = ()
) -> TensorParallelGroup:
    """Return the group of this process. Every process of the world calls this alike.

    ``sizes``: processes of every rank along each axis of a mesh, if it has several.
    """
    world = dist.group.WORLD
    assert world is not None
    rank, tensor_rank = processes.place(dist.get_rank())
    made, sizes = _MADE.setdefault(world, {}), sizes if len(sizes) > 1 else ()
    key = device.type, processes, sizes
    if key not in made:
        made[key] = _mesh(processes, rank, device, sizes)
    mesh = made[key]
    axes = None if mesh is None else MeshAxes(mesh)
    return TensorParallelGroup(processes, rank, tensor_rank, mesh, axes)


def _mesh(processes: Processes, rank: int, device: torch.device, sizes: tuple[int, ...]) -> DeviceMesh | None:
    size = processes.sizes[rank]
    if sizes:
        names = tuple(f"axis {axis}" for axis in range(len(sizes)))
        return init_device_mesh(device.type, (len(processes.sizes), *sizes), mesh_dim_names=("pipeline", *names))[names]
    if processes.uniform and size > 1:
        shape = len(processes.sizes), size
        return init_device_mesh(device.type, shape, mesh_dim_names=("pipeline", "tensor"))["tensor"]
    own = None
    for other, members in enumerate(processes.sizes):
        if members > 1:  # every process takes part in the creation of each group
            group = dist.new_group(list(processes.of_rank(other)))
            own = group if other == rank else own
    return None if own is None else DeviceMesh.from_group(own, device.type, mesh_dim_names=("tensor",))
