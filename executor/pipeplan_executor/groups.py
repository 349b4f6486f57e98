"""Process groups for the replicas of stages, and of stages that share weights."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch.distributed as dist

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
