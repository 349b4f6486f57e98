"""Workers that train on a dataset of which each rank loads its share, and on the whole batches."""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.distributed.models import tiny_decoder
from helpers.distributed.training_models import padded
from helpers.distributed.training_workers import Case, planned
from pipeplan_executor.stages.source import draw
from pipeplan_executor.train.data import Share, batches
from pipeplan_executor.train.pipeline import Pipeline

CASES = {
    "replicas": Case(tiny_decoder, (2,)),
    "stages": Case(tiny_decoder, (1, 1)),
    "weighted": Case(padded, (2,)),
}
"""On two ranks; the weights of ``padded`` depend on all targets of a batch."""
STEPS, LEFT = 3, 3
"""Whole batches of the dataset, and samples beside them."""


@dataclass
class Counted(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Samples, and the numbers of those that were loaded."""

    inputs: Tensor
    targets: Tensor
    loaded: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        self.loaded.append(number)
        return self.inputs[number], self.targets[number]


def shared_out() -> dict[str, dict[str, Any]]:
    """For each case the losses of both, and by rank what it loaded, whether it logs, and what its tracker got."""
    return {name: _shared_out(case) for name, case in CASES.items()}


def _shared_out(case: Case) -> dict[str, Any]:
    workload, plan = case.build(), planned(case)
    inputs, targets = draw(workload, plan.batch * STEPS + LEFT, 1)
    tracked: list[dict[str, float]] = []
    own, everything = Counted(inputs, targets), Counted(inputs, targets)
    sharing = Pipeline(plan, case.build, seed=2, clip=1.0, on_step=tracked.append)
    losses = [sharing.step(*parts) for parts in sharing.batches(own, seed=3, epoch=1)]
    rest = [numbers for numbers, _ in sharing.batches(Counted(inputs, targets), first=2)]
    whole = Pipeline(plan, case.build, seed=2, clip=1.0)
    share = Share(plan.micro_batches, plan.micro_batch, tuple(range(plan.micro_batches)))
    expected = [whole.step(*parts) for parts in batches(share, everything, seed=3, epoch=1, shuffle=True, first=0)]
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, {"loaded": own.loaded, "logs": sharing.logs, "tracked": tracked, "rest": len(rest)})
    return {"losses": losses, "expected": expected, "batch": plan.batch, "ranks": seen}
