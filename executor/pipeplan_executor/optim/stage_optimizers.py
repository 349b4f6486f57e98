"""Construction of one optimiser per stage of a rank, with the process groups that reduce its gradients."""

from collections.abc import Mapping, Sequence

import torch.distributed as dist
from torch import nn

from pipeplan.core.errors import PlanError
from pipeplan.core.pipeline import layer_counts
from pipeplan.core.plan import Plan
from pipeplan.core.priority import Priority
from pipeplan.core.schedule import Action, Kind
from pipeplan_executor.optim.buckets import Buckets
from pipeplan_executor.optim.flat import Flat
from pipeplan_executor.optim.lossy.sums import BoundedLoss
from pipeplan_executor.optim.optimise import (
    OptimizerFactory,
    SchedulerFactory,
    StageOptimizer,
    check_elementwise,
)
from pipeplan_executor.optim.reduction import Copied, ShardedNames
from pipeplan_executor.runtime.process_groups import replica_groups
from pipeplan_executor.sharding.mesh.layers import MeshLayers
from pipeplan_executor.sharding.shards import ParameterShard
from pipeplan_executor.sharding.tensor_parallel_group import TensorParallelGroup
from pipeplan_executor.stages.fully_sharded import sharded_stages
from pipeplan_executor.stages.split import Fitted
from pipeplan_executor.stages.stage_module import StageModule
from pipeplan_executor.stages.ties import Copies


def stage_optimizers(
    fitted: Fitted,
    modules: Mapping[int, StageModule],
    build: OptimizerFactory,
    schedule: SchedulerFactory | None,
    group: TensorParallelGroup,
    shards: Mapping[str, ParameterShard],
    twins: Mapping[int, StageOptimizer] | None = None,
) -> dict[int, StageOptimizer]:
    """Build the optimisers of these stages of this rank, by number.

    Every process must call this, since process groups are created.

    Parameters
    ----------
    build, schedule, twins
        See `pipeplan_executor.optim.optimise.StageOptimizer`.
    """
    replicas = fitted.plan.schedule.homes
    # the sums of a batch run beside the next one, which may use the world's group
    apart = fitted.plan.staleness > 0 or bool(fitted.plan.priority)
    groups = replica_groups(replicas, group.processes, apart)
    copy_groups = replica_groups(
        [tuple(sorted({rank for stage in copies.stages for rank in replicas[stage]})) for copies in fitted.copies],
        group.processes,
        apart,
    )
    optimizers = {
        number: StageOptimizer(
            module,
            build,
            groups.get(number),
            fitted.plan.zero,
            _copied(fitted.copies, copy_groups, number, module),
            schedule,
            _sharded_names(module, shards, group),
            _together(fitted.plan, number),
            (twins or {}).get(number),
        )
        for number, module in modules.items()
    }
    ahead: Buckets | None = None
    for number, optimizer in sorted(optimizers.items(), reverse=True):
        optimizer.buckets = _buckets(fitted.plan, number, group.rank, modules, optimizer, ahead)
        ahead = optimizer.buckets or ahead
        if optimizer.buckets is not None and optimizer.buckets.ordered and optimizer.optimizer is not None:
            check_elementwise(optimizer.optimizer, "with sums front layers first each layer is updated by itself")
    return optimizers


def _sharded_names(
    module: StageModule, shards: Mapping[str, ParameterShard], group: TensorParallelGroup
) -> ShardedNames:
    """Return which parameters of a stage are sharded along which axes."""
    if group.axes is not None and isinstance(module.sharded_layers, MeshLayers):
        return ShardedNames(module.sharded_layers.cuts, group.axes.places)
    return ShardedNames({name: {0} for name in shards}, (group.tensor_rank,))


def _together(plan: Plan, stage: int) -> list[list[int]]:
    """Return the numbers of layers of a stage that are summed together, and of those that are gathered together.

    Weights that other stages copy have buckets of their own, without layers.
    """
    priced = plan.pipeline.stages[stage]
    return [layer_counts(priced.buckets), layer_counts(priced.gather_buckets)]


def _buckets(
    plan: Plan,
    stage: int,
    rank: int,
    modules: Mapping[int, StageModule],
    optimizer: StageOptimizer,
    ahead: Buckets | None = None,
) -> Buckets | None:
    """Return the buckets of a stage on this rank, which leave behind those ``ahead``; None if all sums begin at R.

    Of several stages on a rank the last one's buckets leave first, the same on all replicas. A stage to which the plan
    gives none takes its turn with one, at R. If a list of the stage's ranks has an R ahead of a backward, this order is
    not that of the lists, so nothing leaves before R. At levels 2 and 3 of ZeRO every backward sums its gradients
    itself.
    """
    sizes, order = _order(plan, stage)
    orders, homes = plan.schedule.orders, plan.schedule.homes[stage]
    shared = any(action.stage != stage for home in homes for action in orders[home])
    if order and shared:
        raise PlanError(
            f"stage {stage} sums its front layers first, and shares ranks with other stages, whose sums would wait for "
            "its own or overtake them; solve again without --front-first"
        )
    takes_turns = len(homes) > 1 and any(_order(plan, each)[0] for each in modules)
    if not (sizes or takes_turns) or stage in sharded_stages(plan):
        return None
    if shared and (plan.staleness or not all(_sums_at_the_end(orders[home]) for home in homes)):
        return None
    own = [part for part in optimizer.parts if isinstance(part, Flat) and not part.copied]
    users = _users(modules, own) | {stage}
    ends = [a for a in orders[rank] if a.kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT) and a.stage in users]
    is_last = bool(sizes and ends) and ends[-1].stage == stage  # nothing adds to its gradients behind its own backward
    last, last_slice = (ends[-1].micro_batch, ends[-1].slice) if is_last else (None, 0)
    layers = modules[stage].layers
    return Buckets(layers, sizes or [len(layers)], own, last, last_slice, order, _losses(plan, stage, own), ahead)


def _users(modules: Mapping[int, StageModule], parts: Sequence[Flat]) -> set[int]:
    """Return the stages that use some of these parameters."""
    own = {id(parameter) for part in parts for _, parameter in part.named}
    return {number for number, module in modules.items() if not own.isdisjoint(map(id, module.layers.parameters()))}


def _sums_at_the_end(order: Sequence[Action]) -> bool:
    """Return whether no backward in a list is behind a reduction."""
    kinds = [action.kind for action in order]
    behind = kinds[kinds.index(Kind.REDUCE) :] if Kind.REDUCE in kinds else []
    return not any(kind.per_micro_batch for kind in behind)


def _losses(plan: Plan, stage: int, parts: Sequence[Flat]) -> list[BoundedLoss]:
    """Return what the sums of each bucket of a stage may leave out; none if nothing may be.

    Raises
    ------
    PlanError
        If the process group has only collectives, which cannot be cut.
    InputError
        If the format of the gradients, or a share, has no bounded loss.
    """
    lost = dict(plan.priority[stage].lost) if plan.priority else {}
    if not lost:
        return []
    if dist.get_backend() == "nccl":
        raise PlanError(
            f"stage {stage} may leave out gradients, and nccl sums them in collectives that cannot be cut; run on "
            "CPUs, where gloo sends messages, or solve again without --loss-budget"
        )
    names = [name for name in reversed(plan.stages[stage].layers) if name in plan.priority[stage].chunks]
    losses = [BoundedLoss(lost.get(name, 0.0), seed=bucket) for bucket, name in enumerate(names)]
    for part in parts:
        for loss in losses:
            loss.check(part.gradients.dtype)
    return losses


def _order(plan: Plan, stage: int) -> tuple[list[int], list[int]]:
    """Return the numbers of layers of a stage's buckets, and the bucket of each chunk where the plan orders chunks."""
    own = plan.priority[stage] if plan.priority else Priority(0)
    if not own.sends:
        return layer_counts(plan.pipeline.stages[stage].buckets), []
    layers = plan.stages[stage].layers
    sizes = own.units(layers)
    behind = [name for name in reversed(layers) if name in own.chunks]
    return sizes, [behind.index(send.layer) for send in own.sends for _ in range(send.chunks)]


def _copied(
    every: Sequence[Copies], copy_groups: Mapping[int, dist.ProcessGroup], stage: int, module: nn.Module
) -> list[Copied]:
    """Return the stage's copied parameters, by their names on the first stage, with the group of all their ranks."""
    own = dict(module.named_parameters(remove_duplicate=False))
    return [
        ([(first, own[name]) for first, name in zip(copies.names[0], copies.on(stage), strict=True)], copy_groups[i])
        for i, copies in enumerate(every)
        if stage in copies.stages
    ]
