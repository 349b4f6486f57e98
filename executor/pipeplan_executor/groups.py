"""Process groups for the replicas of stages, and of stages that share weights."""

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from pipeplan.schedule import Kind, Schedule

_MADE: WeakKeyDictionary[dist.ProcessGroup, dict[tuple[int, ...], dist.ProcessGroup]] = WeakKeyDictionary()
"""Groups by their ranks, for every world: making one takes time and threads, so it is made once."""


def replica_groups(replicas: Sequence[tuple[int, ...]]) -> dict[int, dist.ProcessGroup]:
    """A group for each stage (or whatever else is listed) that has several ranks.

    Every rank calls this with the same argument, and gets the groups of which it is no member too.
    """
    world = dist.group.WORLD
    assert world is not None
    made = _MADE.setdefault(world, {})
    found = {}
    for stage, ranks in enumerate(replicas):
        if len(ranks) == dist.get_world_size() > 1:
            found[stage] = world
        elif len(ranks) > 1:
            if ranks not in made:
                made[ranks] = dist.new_group(list(ranks))
            found[stage] = made[ranks]
    return found


class LastReplicas:
    """The ranks that share the last stage's micro-batches.

    Parameters
    ----------
    group : ProcessGroup or None
        None if there is one only.
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

    def gathered(
        self, found: Mapping[int, tuple[Tensor, ...]], shapes: Sequence[Tensor], device: torch.device
    ) -> list[tuple[Tensor, ...]]:
        """What each rank found for its micro-batches, for all of them; ``shapes`` are those of one micro-batch."""
        rows = []
        for number in range(len(self._owners)):
            row = found.get(number) or tuple(torch.empty(s.shape, dtype=s.dtype, device=device) for s in shapes)
            if self._group is not None:
                row = tuple(tensor.contiguous() for tensor in row)
                for tensor in row:
                    dist.broadcast(tensor, self._owners[number], group=self._group)
            rows.append(row)
        return rows
