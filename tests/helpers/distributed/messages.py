"""Worker for the tests of sums by messages."""

from unittest import mock

import torch
import torch.distributed as dist

from helpers.distributed.everywhere import greatest
from pipeplan_executor.optim import messages


def worst_errors(lengths: dict[str, tuple[int, ...]], segment: int) -> dict[str, float]:
    """By name of some parts' lengths: the worst error of any owner's sum, in segments of so many numbers.

    All sums are asked for at once. Other parts than the own stay as they were.
    """
    group = dist.group.WORLD
    assert group is not None
    rank, world = dist.get_rank(), dist.get_world_size()
    every = {  # [name][rank][owner]
        name: [[(1 + r) * torch.arange(own, dtype=torch.float64) + r for own in owners] for r in range(world)]
        for name, owners in lengths.items()
    }
    parts = {name: [part.clone() for part in found[rank]] for name, found in every.items()}
    with mock.patch.object(messages, "SEGMENT", segment):
        asked = [messages.messages(group).sum(own) for own in parts.values()]
        for each in asked:
            each.wait()
    errors = {}
    for name, own in parts.items():
        wanted = list(every[name][rank])
        wanted[rank] = torch.stack([found[rank] for found in every[name]]).sum(0)
        away = [float((a - b).abs().max()) for a, b in zip(own, wanted, strict=True) if len(a)]
        errors[name] = greatest(max(away, default=0.0))
    return errors
