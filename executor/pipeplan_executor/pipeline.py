"""A plan at work on this rank: build the local stages once, then call `Pipeline.step` in a loop of your own."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeplan.errors import PlanError
from pipeplan.plan import Plan
from pipeplan.schedule import Action, Kind
from pipeplan_executor.engine import Engine
from pipeplan_executor.groups import replica_groups
from pipeplan_executor.lower import lower
from pipeplan_executor.observe import Recorder
from pipeplan_executor.optimise import StageOptimizer
from pipeplan_executor.order import find_replicas
from pipeplan_executor.reduction import Copied
from pipeplan_executor.split import Source, build_stage, fit
from pipeplan_executor.stage import StageWork
from pipeplan_executor.ties import Copies

LEARNING_RATE = 1e-3


class Pipeline:
    """The stages of one rank.

    Replicas of a stage begin with the same weights and stay alike, since they update from the same sum of gradients.
    Buffers are each replica's own, as in data-parallel training without broadcasts: batch norm's running statistics
    come from the micro-batches that this replica has seen.

    Parameters
    ----------
    plan : Plan
        Its rank r is this process group's rank r.
    source : Workload, str or callable
        See `pipeplan_executor.split.build`.
    seed : int
        Of the weights, unless the workload's module or ``weights`` has them.
    weights : path, optional
        A state-dict file of the unsplit model.
    dtype : torch.dtype, optional
        Converts floating-point weights and inputs.
    learning_rate : float
        Of the plan's optimiser.

    Raises
    ------
    PlanError
        If the plan does not belong to the model or to this process group.
    """

    def __init__(
        self,
        plan: Plan,
        source: Source,
        *,
        seed: int = 0,
        weights: str | Path | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        learning_rate: float = LEARNING_RATE,
    ) -> None:
        check_world(plan, dist.get_world_size())
        self.plan, self.dtype, self.device = plan, dtype, torch.device(device)
        self.recorder = Recorder()
        rank = dist.get_rank()
        self.fitted = fitted = fit(plan, source, dtype)
        steps = lower(plan.schedule, sharded=plan.zero1, tied=plan.pipeline.tied)[rank]
        self.workload = fitted.workload
        self.numbers = sorted({action.stage for action in plan.schedule.orders[rank]})
        self.modules = {
            number: build_stage(fitted, number, seed=seed, weights=weights, device=self.device, dtype=dtype)
            for number in self.numbers
        }
        replicas = find_replicas(plan.schedule)
        groups = replica_groups(replicas)
        everybody = replica_groups(
            [tuple(sorted({r for s in copies.stages for r in replicas[s]})) for copies in fitted.copies]
        )
        self._optimizers = {
            number: StageOptimizer(
                module,
                plan.optimizer,
                learning_rate,
                groups.get(number),
                plan.zero1,
                _copied(fitted.copies, everybody, number, module),
            )
            for number, module in self.modules.items()
        }
        split: dict[int, set[int]] = {number: set() for number in self.numbers}
        for action in plan.schedule.orders[rank]:
            if action.kind is Kind.INPUT_GRADIENT:
                split[action.stage].add(action.micro_batch)
        last = len(plan.stages) - 1
        stages = {
            number: StageWork(module, number > 0, self._weighted_loss if number == last else None, split[number])
            for number, module in self.modules.items()
        }
        self._engine = Engine(stages, fitted.boundaries, steps, self._once_a_step, self.recorder, self.device)
        self._planned = {step.stage for step in steps if isinstance(step, Action) and step.kind is Kind.UPDATE}
        self._updates = True

    @property
    def holds_first(self) -> bool:
        """Whether this rank reads inputs of the batch."""
        return 0 in self.numbers

    @property
    def holds_last(self) -> bool:
        """Whether this rank reads targets of the batch."""
        return len(self.plan.stages) - 1 in self.numbers

    def step(self, inputs: Tensor | None, targets: Tensor | None, *, update: bool = True) -> float:
        """One training step; the batch's mean loss, the same number on every rank.

        Parameters
        ----------
        inputs, targets : Tensor or None
            The whole batch; a rank without the first (last) stage may pass None.
        update : bool
            The optimiser uses the gradients and clears them. Otherwise they stay, and the next step adds to them;
            under ZeRO-1 each replica then has the sums of its own share only.
        """
        return self.shared_loss(self.compute(inputs, targets, update=update))

    def compute(self, inputs: Tensor | None, targets: Tensor | None, *, update: bool = True) -> dict[int, float]:
        """The same step; weighted losses of those micro-batches whose last stage is here."""
        self._updates = update
        for optimizer in self._optimizers.values():
            optimizer.begin()
        losses = self._engine.run(self._parts(inputs, self.holds_first), self._parts(targets, self.holds_last))
        for number in self.numbers:
            if number not in self._planned:
                self._once_a_step(Action(Kind.UPDATE, number))
        return losses

    def shared_loss(self, losses: dict[int, float]) -> float:
        """The sum of all losses, told to every rank."""
        total = torch.tensor([sum(losses.values())], dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return float(total)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Of the local stages."""
        for module in self.modules.values():
            yield from module.parameters()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """With the names that they have in the unsplit model."""
        for module in self.modules.values():
            yield from module.named_parameters()

    def state_dict(self) -> dict[str, Tensor]:
        """Of the local stages, with the unsplit names."""
        return {name: value for module in self.modules.values() for name, value in module.state_dict().items()}

    def optimizer_state(self, stage: int) -> dict[object, dict[str, object]]:
        """What the optimiser of a local stage keeps, by the parameter (or piece of one) that it updates."""
        return self._optimizers[stage].state

    def _once_a_step(self, action: Action) -> None:
        if action.kind is Kind.REDUCE:
            self._optimizers[action.stage].reduce()
        elif self._updates:
            self._optimizers[action.stage].update()

    def _parts(self, batch: Tensor | None, needed: bool) -> list[Tensor | None]:
        count, size = self.plan.micro_batches, self.plan.micro_batch
        if not needed:
            return [None] * count
        if batch is None or batch.shape[0] != count * size:
            found = "None" if batch is None else str(batch.shape[0])
            raise PlanError(
                f"this rank needs a batch of {count * size} samples ({count} micro-batches of {size}), not {found}; "
                "drop the last, smaller batch of an epoch, or plan for its size too"
            )
        converted = batch.to(self.dtype) if self.dtype is not None and batch.is_floating_point() else batch
        return list(converted.to(self.device).split(size))

    def _weighted_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.workload.loss(outputs, targets) / self.plan.micro_batches


def _copied(
    every: Sequence[Copies], everybody: Mapping[int, dist.ProcessGroup], stage: int, module: nn.Module
) -> list[Copied]:
    """The stage's parameters of which other stages have copies, with all ranks that have one."""
    return [
        ([module.get_parameter(name) for name in copies.on(stage)], everybody[i])
        for i, copies in enumerate(every)
        if stage in copies.stages
    ]


def check_world(plan: Plan, world: int) -> None:
    """Refuse a process group of another size than the plan's."""
    if world != len(plan.ranks):
        raise PlanError(
            f"the plan has {len(plan.ranks)} ranks, but {world} processes were started; start {len(plan.ranks)} "
            f"(torchrun --nproc-per-node {len(plan.ranks)}), or solve for {world} devices"
        )
