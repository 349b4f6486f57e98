"""Process groups for the replicas of stages, and of stages that share weights."""

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from pipeplan.core.schedule import Kind, Schedule

_MADE: WeakKeyDictionary[dist.ProcessGroup, dict[tuple[int, ...], dist.ProcessGroup]] = WeakKeyDictionary()
"""Groups by their ranks, for every world: creating one takes time and threads, so it is created once."""


def replica_groups(replicas: Sequence[tuple[int, ...]], group_size: int = 1) -> dict[int, dist.ProcessGroup]:
    """Return a process group for each listed stage, or set of copies, that has several ranks, by its place in the list.

    Every process calls this with the same arguments, and gets also groups that it does not belong to. If a rank of the
    plan is a tensor-parallel group of ``group_size`` processes, it gets only the groups of its own column.
    """
    world = dist.group.WORLD
    assert world is not None
    made = _MADE.setdefault(world, {})
    found = {}
    for stage, ranks in enumerate(replicas):
        for tensor_rank in range(group_size):
            processes = tuple(rank * group_size + tensor_rank for rank in ranks)
            if len(processes) == dist.get_world_size() > 1:
                found[stage] = world
            elif len(processes) > 1:
                if processes not in made:
                    made[processes] = dist.new_group(list(processes))
                if tensor_rank == dist.get_rank() % group_size:
                    found[stage] = made[processes]
    return found


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
