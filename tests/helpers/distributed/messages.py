"""Worker for the tests of sums and gathers by messages."""

from unittest import mock

import torch
import torch.distributed as dist

from helpers.distributed.everywhere import greatest
from pipeplan_executor.stages import messages


def worst_errors(lengths: dict[str, tuple[int, ...]], at_once: int) -> dict[str, float]:
    """By name of some parts' lengths: the worst error of any owner's sum, and of the gather of all owners' sums.

    All sums are asked for at once, then all gathers; a sum sends so many numbers at once. Other parts than the own stay
    as they were until they are gathered.
    """
    group = dist.group.WORLD
    assert group is not None
    rank, world = dist.get_rank(), dist.get_world_size()
    every = {  # [name][rank][owner]
        name: [[(1 + r) * torch.arange(own, dtype=torch.float64) + r for own in owners] for r in range(world)]
        for name, owners in lengths.items()
    }
    parts = {name: [part.clone() for part in found[rank]] for name, found in every.items()}
    with mock.patch.object(messages, "AT_ONCE", at_once):
        for each in [messages.messages(group).sum(own) for own in parts.values()]:
            each.wait()
    summed = {name: [part.clone() for part in own] for name, own in parts.items()}
    for each in [messages.messages(group).gather(own) for own in parts.values()]:
        each.wait()
    errors = {}
    for name, found in every.items():
        sums = [torch.stack([one[owner] for one in found]).sum(0) for owner in range(world)]
        wanted = [sums[owner] if owner == rank else part for owner, part in enumerate(found[rank])]
        pairs = [*zip(summed[name], wanted, strict=True), *zip(parts[name], sums, strict=True)]
        errors[name] = greatest(max((float((a - b).abs().max()) for a, b in pairs if len(a)), default=0.0))
    return errors
