"""Ranks that stand still with all kinds of connections open, importable by name in other processes."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist


def stand(folder: str) -> int:
    """Exchange tensors in the world and in a group, say so, wait for the file ``go``; return the number of ranks."""
    value = torch.ones(1)
    dist.all_reduce(value)
    group = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        dist.all_reduce(torch.ones(1), group=group)
    (Path(folder) / f"ready{dist.get_rank()}").write_text(str(os.getpid()))
    while not (Path(folder) / "go").exists():
        time.sleep(0.1)
    return int(value)
