"""Profiles of workloads for tests that need operators, not times."""

import torch

from pipeplan.core.model import Model
from pipeplan.frontend.profile import profile
from pipeplan.frontend.workload import Workload


def profile_of(workload: Workload, size: int = 2, group: tuple[str, ...] = ()) -> Model:
    """Return the profile of one micro-batch size, measured once; ``group``: modules that are captured whole."""
    generator = torch.Generator().manual_seed(0)
    return profile(
        workload.module,
        lambda samples: workload.draw(samples, generator),
        micro_batches=(size,),
        repeats=1,
        warmup=0,
        loss=workload.loss,
        group=group,
    )
