"""`group_of_one`: a process group of the test's own process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist


@contextmanager
def group_of_one(folder: Path) -> Iterator[None]:
    """Context in which this process is rank 0 of a world of one."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
