"""Plans from boundaries and an action list, for models whose costs do not matter."""

from collections.abc import Sequence
from itertools import pairwise

import torch

from pipeplan.chain import UNLIMITED
from pipeplan.cluster import Overlap
from pipeplan.pipeline import Pipeline, Stage, Transfer
from pipeplan.plan import MemoryParts, Plan, PlanStage
from pipeplan.schedule import Schedule
from pipeplan_executor.split import describe


def plan_for(
    module: torch.nn.Module,
    names: Sequence[str],
    boundaries: Sequence[int],
    schedule: Schedule,
    micro_batch: int = 2,
    optimizer: str = "sgd",
) -> Plan:
    """A plan that runs ``names`` cut at ``boundaries``, one rank a list of the schedule; its times are made up."""
    ranks = len(schedule.orders)
    spans = list(pairwise(boundaries))
    home = {action.stage: rank for rank, order in enumerate(schedule.orders) for action in order}
    way = tuple((Transfer(),) for _ in spans[1:])
    return Plan(
        model="test",
        fingerprint=describe("test", module, names).fingerprint,
        cluster="test",
        device_kinds=("cpu-worker",) * ranks,
        micro_batch=micro_batch,
        micro_batches=schedule.micro_batches,
        optimizer=optimizer,
        stages=tuple(
            PlanStage(tuple(names[a:b]), (home[s],), 1, 1, schedule.micro_batches, MemoryParts())
            for s, (a, b) in enumerate(spans)
        ),
        schedule=schedule,
        ranks=tuple(range(ranks)),
        step_time=1,
        bound=1,
        pipeline=Pipeline(
            stages=tuple(Stage(1, 1) for _ in spans),
            placement=tuple((home[s],) for s in range(len(spans))),
            transfers=way,
            returns=way,
            overlap=Overlap.COPY,
            runtime=(0,) * ranks,
            limits=(UNLIMITED,) * ranks,
        ),
    )
