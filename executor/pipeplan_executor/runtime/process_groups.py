"""Process groups for the replicas of stages, and of stages that share weights."""

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from pipeplan.core.errors import PlanError
from pipeplan.core.schedule import Kind, Schedule
from pipeplan_executor.sharding.processes import Processes

_MADE: WeakKeyDictionary[dist.ProcessGroup, dict[tuple[int, ...], dist.ProcessGroup]] = WeakKeyDictionary()
"""Groups by their ranks, for every world: creating one takes time and threads, so it is created once."""


def replica_groups(
    replicas: Sequence[tuple[int, ...]], processes: Processes | None = None, apart: bool = False
) -> dict[int, dist.ProcessGroup]:
    """Return a process group for each listed stage, or set of copies, that has several ranks, by its place in the list.

    Every process calls this with the same arguments, and gets also groups that it does not belong to. Where ranks are
    tensor-parallel groups of processes, the processes of one tensor-parallel rank make up a group, and each process
    gets its own. By default each rank is one process. ``apart``: the group of all ranks is not the world's, so that its
    collectives have an order of their own.

    Raises
    ------
    PlanError
        If the ranks of a group have unlike numbers of processes.
    """
    world = dist.group.WORLD
    assert world is not None
    made = _MADE.setdefault(world, {})
    processes = processes or Processes((1,) * dist.get_world_size())
    found: dict[int, dist.ProcessGroup] = {}
    for stage, ranks in enumerate(replicas):
        sizes = {processes.sizes[rank] for rank in ranks}
        if len(sizes) > 1:
            raise PlanError(
                f"ranks {', '.join(map(str, ranks))} sum gradients, and have {' and '.join(map(str, sorted(sizes)))} "
                "processes: their parts of a parameter differ; solve again"
            )
        for own in zip(*(processes.of_rank(rank) for rank in ranks), strict=True):
            if len(own) == dist.get_world_size() > 1 and not apart:
                found[stage] = world
            elif len(own) > 1:
                if own not in made:
                    made[own] = dist.new_group(list(own))
                if dist.get_rank() in own or stage not in found:
                    found[stage] = made[own]
    return found


def group_apart() -> dist.ProcessGroup:
    """Return a group of all ranks whose collectives have an order of their own; every process calls this."""
    world = dist.group.WORLD
    assert world is not None
    made = _MADE.setdefault(world, {})
    if () not in made:
        made[()] = dist.new_group()
    return made[()]


class LastReplicas:
    """Replicas of the last stage, and the micro-batches of each.

    Parameters
    ----------
    group : ProcessGroup or None
        Their group; None for a single replica.
    """

    def __init__(self, schedule: Schedule, group: dist.ProcessGroup | None) -> None:
        last = schedule.stages - 1
        self._group = group
        self._owners = {
            action.micro_batch: rank
            for rank, order in enumerate(schedule.orders)
            for action in order
            if action.stage == last and action.kind is Kind.FORWARD
        }
        self._ranks = schedule.homes[last]

    def gathered(
        self, found: Mapping[int, tuple[Tensor, ...]], shapes: Sequence[Tensor], device: torch.device
    ) -> list[tuple[Tensor, ...]]:
        """Return the outputs of all micro-batches, broadcast by their ranks; ``shapes``: those of one micro-batch."""
        rows = []
        for number in range(len(self._owners)):
            row = found.get(number) or tuple(torch.empty(s.shape, dtype=s.dtype, device=device) for s in shapes)
            if self._group is not None:
                row = tuple(tensor.contiguous() for tensor in row)
                for tensor in row:
                    dist.broadcast(tensor, group=self._group, group_src=self._ranks.index(self._owners[number]))
            rows.append(row)
        return rows
