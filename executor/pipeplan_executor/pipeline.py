"""A plan at work on this rank: build the local stages once, then call `Pipeline.step` in a loop of your own."""

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeplan.errors import PlanError
from pipeplan.plan import Plan
from pipeplan.schedule import Action, Kind
from pipeplan_executor.adapter import Engine, EngineStage
from pipeplan_executor.lower import find_owners, lower
from pipeplan_executor.observe import Recorder
from pipeplan_executor.split import Source, build_stage, fit

LEARNING_RATE = 1e-3


class Pipeline:
    """The stages of one rank.

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
        steps = lower(plan.schedule)
        owners = find_owners(plan.schedule)
        fitted = fit(plan, source, dtype)
        self.workload = fitted.workload
        rank = dist.get_rank()
        self.numbers = sorted({action.stage for action in plan.schedule.orders[rank]})
        self.modules = {
            number: build_stage(fitted, number, seed=seed, weights=weights, device=self.device, dtype=dtype)
            for number in self.numbers
        }
        stages = [
            EngineStage(module, number, len(plan.stages), fitted.boundaries[number], owners, self.device, self.recorder)
            for number, module in self.modules.items()
        ]
        self._last_rank = owners[len(plan.stages) - 1, 0]
        self._engine = Engine(stages, plan.micro_batches, self._weighted_loss, steps, self.recorder)
        self._optimizers = {
            number: _optimizer(plan.optimizer, module, learning_rate) for number, module in self.modules.items()
        }

    @property
    def holds_first(self) -> bool:
        """Whether this rank reads the batch's inputs."""
        return 0 in self.numbers

    @property
    def holds_last(self) -> bool:
        """Whether this rank reads the batch's targets."""
        return len(self.plan.stages) - 1 in self.numbers

    def step(self, inputs: Tensor | None, targets: Tensor | None, *, update: bool = True) -> float:
        """One training step; the batch's mean loss, the same number on every rank.

        Parameters
        ----------
        inputs, targets : Tensor or None
            The whole batch; a rank without the first (last) stage may pass None. Gradients are added to those that
            are there; with ``update`` the optimiser uses and clears them.
        """
        losses = self.compute(inputs, targets)
        if update:
            self.update()
        return self.shared_loss(losses)

    def compute(self, inputs: Tensor | None, targets: Tensor | None) -> dict[int, float]:
        """Forward and backward of every micro-batch; weighted losses of those whose last stage is here."""
        return self._engine.run(self._parts(inputs, self.holds_first), self._parts(targets, self.holds_last))

    def update(self) -> None:
        """The optimiser step of the local stages, and gradients cleared."""
        for number, optimizer in self._optimizers.items():
            with self.recorder.during(Action(Kind.UPDATE, number)):
                optimizer.step()
            optimizer.zero_grad(set_to_none=False)

    def shared_loss(self, losses: dict[int, float]) -> float:
        """The sum of the last stage's losses, told to every rank."""
        total = torch.tensor([sum(losses.values())], dtype=torch.float64, device=self.device)
        dist.broadcast(total, src=self._last_rank)
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


def check_world(plan: Plan, world: int) -> None:
    """Refuse a process group of another size than the plan's."""
    if world != len(plan.ranks):
        raise PlanError(
            f"the plan has {len(plan.ranks)} ranks, but {world} processes were started; start {len(plan.ranks)} "
            f"(torchrun --nproc-per-node {len(plan.ranks)}), or solve for {world} devices"
        )


def _optimizer(name: str, module: nn.Module, rate: float) -> torch.optim.Optimizer:
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        parameters = [nn.Parameter(torch.zeros(()))]  # a stage of poolings only; torch refuses an empty list
    if name == "adam":
        return torch.optim.Adam(parameters, lr=rate)
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9 if name == "momentum" else 0.0)
