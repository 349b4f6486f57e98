"""One optimiser for each stage of a rank, with the groups of ranks that share its gradients."""

from collections.abc import Mapping, Sequence

import torch.distributed as dist
from torch import nn

from pipeplan_executor.optim.optimise import OptimizerFactory, SchedulerFactory, StageOptimizer
from pipeplan_executor.optim.reduction import Copied, Parts
from pipeplan_executor.runtime.process_groups import replica_groups
from pipeplan_executor.runtime.program.order import find_replicas
from pipeplan_executor.sharding.shards import ParameterShard
from pipeplan_executor.sharding.team import TensorParallelGroup
from pipeplan_executor.stages.split import Fitted
from pipeplan_executor.stages.ties import Copies


def stage_optimizers(
    fitted: Fitted,
    modules: Mapping[int, nn.Module],
    build: OptimizerFactory,
    schedule: SchedulerFactory | None,
    team: TensorParallelGroup,
    cuts: Mapping[str, ParameterShard],
) -> dict[int, StageOptimizer]:
    """The optimisers of these stages of this rank, by number.

    Every process takes part, since groups are made.

    Parameters
    ----------
    build, schedule : callable
        See `pipeplan_executor.optim.optimise.StageOptimizer`.
    """
    replicas = find_replicas(fitted.plan.schedule)
    groups = replica_groups(replicas, team.size)
    everybody = replica_groups(
        [tuple(sorted({rank for stage in copies.stages for rank in replicas[stage]})) for copies in fitted.copies],
        team.size,
    )
    return {
        number: StageOptimizer(
            module,
            build,
            groups.get(number),
            fitted.plan.zero1,
            _copied(fitted.copies, everybody, number, module),
            schedule,
            Parts(cuts.keys(), team.member == 0),
        )
        for number, module in modules.items()
    }


def _copied(
    every: Sequence[Copies], everybody: Mapping[int, dist.ProcessGroup], stage: int, module: nn.Module
) -> list[Copied]:
    """The stage's parameters of which other stages have copies, by the first one's names; all ranks that have one."""
    own = dict(module.named_parameters(remove_duplicate=False))
    return [
        ([(first, own[name]) for first, name in zip(copies.names[0], copies.on(stage), strict=True)], everybody[i])
        for i, copies in enumerate(every)
        if stage in copies.stages
    ]
