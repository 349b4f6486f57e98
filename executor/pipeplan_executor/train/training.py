"""`Training`: what trains the stages of a rank: optimisers, forwards and backwards, and the engine that orders them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from pipeplan.core.errors import PlanError
from pipeplan.core.schedule import Action, Kind
from pipeplan_executor.optim.optimise import OptimizerFactory, SchedulerFactory
from pipeplan_executor.optim.stage_optimizers import stage_optimizers
from pipeplan_executor.optim.updates import Updates
from pipeplan_executor.runtime.engine import Engine, is_small
from pipeplan_executor.runtime.program.lower import lower, lower_forward
from pipeplan_executor.runtime.program.rolling import lower_rolling
from pipeplan_executor.runtime.recorder import Recorder
from pipeplan_executor.runtime.rolling import RollingEngine
from pipeplan_executor.runtime.routes import Routes
from pipeplan_executor.sharding.tensor_parallel_group import TensorParallelGroup
from pipeplan_executor.stages.fully_sharded import sharded_stages
from pipeplan_executor.stages.precision import LossScale
from pipeplan_executor.stages.seeds import Moment, seed_layers
from pipeplan_executor.stages.split import Fitted
from pipeplan_executor.stages.stage import StageWork
from pipeplan_executor.stages.stage_module import StageModule
from pipeplan_executor.train.delay import Version
from pipeplan_executor.train.rank_stages import Loss, RankStages


@dataclass(frozen=True)
class Training:
    """How this rank's stages are trained.

    Attributes
    ----------
    fitted : Fitted
    tensor_group : TensorParallelGroup
    loss : callable
        Of the last stage's outputs.
    moment : Moment
    device, precision, optimizer, scheduler, clip
        See `pipeplan_executor.Pipeline`.
    group : ProcessGroup or None
        Of all ranks, for the sums of steps of which two are in flight.
    """

    fitted: Fitted
    tensor_group: TensorParallelGroup
    loss: Loss
    moment: Moment
    device: torch.device
    precision: str | None
    optimizer: OptimizerFactory
    scheduler: SchedulerFactory | None
    clip: float | None
    group: dist.ProcessGroup | None

    def version(self, held: RankStages, twin: Version | None = None) -> Version:
        """Return this rank's stages with their optimisers and works; a ``twin`` has the same optimisers."""
        fitted, plan, modules = self.fitted, self.fitted.plan, held.modules
        twins = None if twin is None else twin.updates.optimizers
        optimizers = stage_optimizers(
            fitted, modules, self.optimizer, self.scheduler, self.tensor_group, held.shards, twins
        )
        scale = None
        if self.precision == "fp16":
            if any(own.lost for own in plan.priority):
                raise PlanError(
                    "gradients of fp16 belong to a scaled loss, whose scale changes between steps: what the plan lets "
                    "one step leave out cannot be added to the next one's. Use bf16, or solve again without "
                    "--loss-budget"
                )
            scale = LossScale(self.device, self.group, None if twin is None else twin.updates.scale)
        updates = Updates(optimizers, plan.optimizer, self.device, self.clip, scale, plan.state_bytes, self.group)
        for number, module in modules.items():
            numbered = zip(fitted.span(number), module.layers, strict=True)
            seed_layers([(place, layer) for place, layer in numbered if fitted.flow.draws[place]], self.moment)
        return Version(modules, updates, self._works(modules, updates))

    def _works(self, modules: Mapping[int, StageModule], updates: Updates) -> dict[int, StageWork]:
        plan, boundaries = self.fitted.plan, self.fitted.boundaries
        split_backwards: dict[int, set[int]] = {number: set() for number in modules}
        for action in plan.schedule.orders[self.tensor_group.rank]:
            if action.kind is Kind.INPUT_GRADIENT:
                split_backwards[action.stage].add(action.micro_batch)
        return {
            number: StageWork(
                module,
                boundaries[number],
                self.loss if number == len(plan.stages) - 1 else None,
                split_backwards[number],
                number,
                self.device,
                self.precision,
                updates.scale,
                updates.optimizers[number].buckets,
            )
            for number, module in modules.items()
        }

    def engine(
        self, version: Version, once_per_step: Callable[[Action], None], recorder: Recorder, routes: Routes
    ) -> tuple[Engine, frozenset[int]]:
        """Return the engine of this rank's steps, and the stages whose update is one of them.

        ``once_per_step``: called for the sums and updates among them.
        """
        plan, rank, boundaries = self.fitted.plan, self.tensor_group.rank, self.fitted.boundaries
        small, zero1, tied = partial(is_small, boundaries=boundaries), plan.zero == 1, plan.pipeline.tied
        only_forward = lower_forward(plan.schedule, small, bool(sharded_stages(plan)))[rank]
        options = only_forward, once_per_step, recorder, self.device, self.moment, routes
        needs_all = version.updates.needs_all_sums
        if plan.staleness:
            rolling = lower_rolling(plan.schedule, small, zero1, tied, needs_all)[rank]
            return RollingEngine(version.stages, boundaries, rolling, *options), frozenset()
        steps = lower(plan.schedule, small, zero1=zero1, tied=tied)[rank]
        if needs_all:  # `Pipeline.compute` then updates after the last step
            steps = tuple(s for s in steps if not (isinstance(s, Action) and s.kind is Kind.UPDATE))
        planned = (s.stage for s in steps if isinstance(s, Action) and s.kind is Kind.UPDATE)
        return Engine(version.stages, boundaries, steps, *options), frozenset(planned)
