"""Merging of results over ranks."""

import torch
import torch.distributed as dist


def greatest(value: float) -> float:
    """Maximum of a value over all ranks, returned on each of them."""
    shared = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return float(shared)
