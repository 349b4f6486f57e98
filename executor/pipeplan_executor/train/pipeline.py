"""`Pipeline`: training under a plan on this rank, for a loop that calls `Pipeline.step`."""

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeplan.core.errors import InputError
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Action, Kind
from pipeplan.core.units import format_time
from pipeplan.frontend.batch import Batch
from pipeplan.frontend.capture.flow import Tensors
from pipeplan.frontend.optimizers import build_optimizer
from pipeplan_executor.optim.optimise import OptimizerFactory, SchedulerFactory
from pipeplan_executor.optim.updates import require_stated, shares
from pipeplan_executor.runtime.process_groups import LastReplicas, group_apart
from pipeplan_executor.runtime.recorder import Recorder
from pipeplan_executor.runtime.rolling import RollingEngine
from pipeplan_executor.runtime.routes import Routes
from pipeplan_executor.sharding.declared import TensorParallel, declared
from pipeplan_executor.sharding.processes import Processes, check_world
from pipeplan_executor.sharding.shards import ParameterShard
from pipeplan_executor.stages.fully_sharded import FullySharded, check_sharded_plan
from pipeplan_executor.stages.on_meshes import on_meshes
from pipeplan_executor.stages.precision import sharing_casts
from pipeplan_executor.stages.seeds import Moment, preserved_random_state
from pipeplan_executor.stages.source import Source
from pipeplan_executor.stages.split import fit
from pipeplan_executor.stages.stage_module import evaluating
from pipeplan_executor.train.data import Share, batches
from pipeplan_executor.train.delay import Delay, check_delayed, share_what_stays
from pipeplan_executor.train.rank_stages import RankStages
from pipeplan_executor.train.tracker import OnNumbers, Tracker
from pipeplan_executor.train.training import Training

if TYPE_CHECKING:
    from pipeplan_executor.checkpoint import Restored, TrainingState

LEARNING_RATE = 1e-3


class Pipeline:
    """The stages of a plan on one rank, and their training step.

    Replicas of a stage begin with the same weights and stay equal, since they update from the same sum of gradients.
    Each replica has its own buffers, as in data-parallel training without broadcasts: batch norm's running statistics
    come from the micro-batches that this replica has seen.

    Parameters
    ----------
    plan : Plan
        Its rank r is this process group's rank r, or the r-th of its tensor-parallel groups of processes.
    source : Workload, str or callable
        See `pipeplan_executor.stages.source`.
    seed : int
        Seed of all random numbers (see `pipeplan_executor.stages.seeds`); of weights only if neither the workload's
        module nor ``weights`` has them.
    weights : path, optional
        A state-dict file of the unsplit model, a safetensors file, or a folder of them.
    dtype : torch.dtype, optional
        Converts floating-point weights and inputs.
    learning_rate : float
        Learning rate of the plan's optimiser.
    optimizer : callable, optional
        ``optimizer(named) -> torch.optim.Optimizer`` for the parameters of one stage, as (name, parameter) pairs;
        instead of the plan's.
    scheduler : callable, optional
        ``scheduler(optimizer)`` returns a learning-rate schedule of torch, which advances with every update.
    clip : float, optional
        Largest global norm of the model's gradients.
    precision : {'bf16', 'fp16'}, optional
        Forward under autocast; with fp16 the loss is scaled too.
    tensor_parallel : TensorParallel or int, optional
        Number of processes that share a rank, and sharding of parameters (see `pipeplan_executor.sharding`). A plan
        with teams has both.
    evaluates : bool
        True if `evaluate` or `predict` will be called; otherwise a captured model is captured once, not twice.
    on_step : callable, optional
        Called on one rank after each `step` with its numbers by name, as trackers take them (``wandb.log``): ``step``,
        ``loss``, ``step_time_s``, ``samples_per_s``, ``learning_rate``, with ``clip`` also ``gradient_norm``.

    Attributes
    ----------
    plan : Plan
        One whose teams split layers by shards and tokens has strategies here (`pipeplan_executor.stages.on_meshes`).
    tensor_group : TensorParallelGroup
        This process's rank of the plan, and its tensor-parallel rank.
    shards : dict of str to ParameterShard
        Sharded parameters by name.
    updates : Updates
        Optimisers, schedules, loss scale, and the norm of the gradients.
    moment : Moment
        Seed and number of steps so far.

    Raises
    ------
    PlanError
        If the plan does not belong to the model or to this process group.
    InputError
        If options are invalid, an optimiser cannot work on shards, or parameters cannot be sharded as declared.

    Examples
    --------
    >>> pipeline = pipeplan_executor.Pipeline(plan, "my_project:build")  # on every rank          # doctest: +SKIP
    >>> loss = pipeline.step(inputs, targets)                            # the batch's mean loss  # doctest: +SKIP
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
        optimizer: OptimizerFactory | None = None,
        scheduler: SchedulerFactory | None = None,
        clip: float | None = None,
        precision: str | None = None,
        tensor_parallel: TensorParallel | int | None = None,
        evaluates: bool = True,
        on_step: OnNumbers | None = None,
    ) -> None:
        wanted = declared(plan, tensor_parallel)
        processes = Processes.of(plan, wanted.size)
        check_world(plan, dist.get_world_size(), processes)
        check_sharded_plan(plan)
        self.plan, self.dtype, self.device, self.precision = plan, dtype, torch.device(device), precision
        self.recorder = Recorder()
        fitted = fit(plan, source, dtype, precision, self.device, both_modes=evaluates)
        self.fitted = fitted = on_meshes(fitted, wanted, precision, self.device)
        self.plan, plan = plan if fitted.kept or plan.team == 1 else fitted.plan, fitted.plan
        self.workload = fitted.workload
        check_delayed(plan, fitted)
        # this rank's stages, with their weights or shards of them
        hold = partial(
            RankStages,
            fitted,
            processes,
            self._loss,
            seed=seed,
            weights=weights,
            device=self.device,
            dtype=dtype,
            precision=precision,
        )
        held = hold()
        self.tensor_group, self.numbers = held.tensor_group, held.numbers
        self._fully, rank, self.moment = held.fully, held.tensor_group.rank, Moment(seed)
        # their optimisers, seeds of the layers that draw random numbers, and forwards and backwards
        trained = (each for module in held.modules.values() for each in module.parameters())
        require_stated(plan, trained, own=optimizer is not None)
        self._last = len(plan.stages) - 1
        apart = group_apart() if plan.staleness else None
        training = Training(
            fitted,
            held.tensor_group,
            self._loss,
            self.moment,
            device=self.device,
            precision=precision,
            optimizer=optimizer or partial(build_optimizer, plan.optimizer, rate=learning_rate),
            scheduler=scheduler,
            clip=clip,
            group=apart,
        )
        first = training.version(held)
        self._delay: Delay | None = None
        if apart is not None:
            other = hold()
            share_what_stays(held.modules, other.modules)
            self._delay = Delay(first, training.version(other, twin=first), apart, self.device)
        self.modules, self.updates, self._stages = first
        if plan.priority and self.updates.needs_all_sums and self.logs:
            warnings.warn(
                f"{'a loss scale' if clip is None else 'clipping by a global norm'} needs all sums before the first "
                "update: no layer is updated by itself, no sum runs beside the next step, and steps take "
                f"{format_time(plan.step_time)} by the plan instead of {format_time(plan.predicted)}",
                stacklevel=2,
            )
        self.shards: dict[str, ParameterShard] = held.shards
        for number, fully in self._fully.items():
            self.shards = self.shards | fully.shards(fitted.named_parameters(number), self.shards)
        # the steps of the plan on this rank
        self._tracker = Tracker(on_step if self.logs else None, plan.batch)
        self._share = Share.of(plan, rank, weighted=self.workload.weight is not None)
        self._last_replicas = LastReplicas(plan.schedule, held.replicas.get(self._last))
        routes = Routes(processes, rank, self.tensor_group.tensor_rank, fitted.tokens)
        self._engine, self._planned = training.engine(first, self._once_per_step, self.recorder, routes)
        self._updates = True

    @property
    def holds_first(self) -> bool:
        """True if this rank reads inputs of the batch."""
        return 0 in self.numbers

    @property
    def holds_last(self) -> bool:
        """True if this rank reads targets of the batch."""
        return self._last in self.numbers

    @property
    def logs(self) -> bool:
        """True on one rank only, which every plan has: the one that prints, and writes to trackers."""
        return int(dist.get_rank()) == 0

    @property
    def accumulates(self) -> bool:
        """True if gradients of steps without update wait for one."""
        return not self._updates

    def step(self, inputs: Batch | None, targets: Batch | None, *, update: bool = True, weight: float = 1.0) -> float:
        """Run one training step; return the batch's mean loss, the same number on every rank.

        With ``staleness`` 1 the batch ends in the next step, or in `drain`: what is returned is the loss of the batch
        before, nan in the first step and behind a `drain`, and gradients of several batches cannot be added.

        Parameters
        ----------
        inputs, targets : Batch or None
            The whole batch: a tensor, or a tuple or dict of tensors, whose first axis counts samples; or the samples of
            this rank's micro-batches alone, as `batches` yields them. A rank without the first (last) stage may pass
            None.
        update : bool
            Use the gradients in an update and clear them. Otherwise they stay, and the next step adds to them; under
            ZeRO-1 each replica then has the sums of only its own share.
        weight : float
            Weight of this batch in the sum of gradients of several steps; the returned loss is not weighted.
        """
        began = time.perf_counter()
        losses = self.compute(inputs, targets, update=update, weight=weight)
        if self._delay is None:
            loss = self.shared_loss(losses)
        else:
            loss = self._delay.exchange_loss(losses, self.tensor_group.tensor_rank == 0)
        self._tracker.tell(
            loss, time.perf_counter() - began, self.moment.step - (self._delay is not None), self.updates
        )
        return loss

    def drain(self) -> float:
        """End the last batch that `step` has begun, on every rank, and return its mean loss.

        Only with ``staleness`` 1 is there anything to end; else the loss is nan. Call it at the end of a run, and ahead
        of your own code that reads weights. All methods that read them do it by themselves. Training goes on as if
        it had not been called: the next batch runs with the weights with which it would have.
        """
        if self._delay is None:
            return math.nan
        began = time.perf_counter()
        self._end()
        loss = self._delay.exchange_loss(None, False)
        self._tracker.tell(loss, time.perf_counter() - began, self.moment.step, self.updates)
        return loss

    def _end(self) -> None:
        """End the last batch, if it has not ended."""
        if self._delay is None or not isinstance(self._engine, RollingEngine):
            return
        step = self.moment.step
        if self._engine.is_running:
            self.recorder.clear()
            with self._around_step():
                self._engine.end()
        self.moment.step, (self.modules, self.updates, self._stages) = step, self._delay.newest
        self._engine.infer_on(self._stages)

    def batches(
        self, dataset: Any, *, seed: int = 0, epoch: int = 0, shuffle: bool = True, first: int = 0, **loading: Any
    ) -> Iterator[tuple[Batch | None, Batch | None]]:
        """Return the inputs and targets of an epoch's steps, of which this rank loads only what its stages read.

        Parameters
        ----------
        dataset : torch.utils.data.Dataset
            Its samples are pairs of inputs and targets, or ``collate_fn`` makes such a pair of several samples.
        seed, epoch : int
            The order depends on both, and is the same under every plan with steps of as many samples.
        shuffle : bool
            Otherwise the samples keep their order. What is left for no whole step is dropped.
        first : int
            Steps of the epoch that are left out, as an earlier run did them.
        **loading
            Options of `torch.utils.data.DataLoader`: ``collate_fn``, ``num_workers``, ``pin_memory`` …
        """
        return batches(self._share, dataset, seed=seed, epoch=epoch, shuffle=shuffle, first=first, **loading)

    def compute(
        self, inputs: Batch | None, targets: Batch | None, *, update: bool = True, weight: float = 1.0
    ) -> dict[int, float]:
        """Run the step of `step`; return the weighted losses of micro-batches whose last stage is here.

        No rank waits for the others at its end, as in the steps of ``--objective period``. `shared_loss` tells all
        ranks the mean loss, now or many steps later. Under ZeRO-1 replicas send each other the updated parameters
        meanwhile: see `wait`.
        """
        self.recorder.clear()
        if self._delay is not None:
            return self._begin(self._delay, inputs, targets, update and weight == 1)
        self._updates = update
        self.updates.begin()
        parts = self._parts(inputs, self.holds_first), self._parts(targets, self.holds_last)
        weights = self._weigh(parts[1], weight)
        with self._around_step():
            losses = self._engine.run(*parts)
            self.updates.finish()
        if update and (not self.updates.needs_all_sums or self.updates.unscale_and_clip()):
            for number in self.numbers:
                if number not in self._planned:
                    with self.recorder.during(Action(Kind.UPDATE, number)):
                        self.updates.update(number)
        self.moment.step += 1
        return {number: weights[number] * loss for number, loss in losses.items() if weights[number]}

    def _begin(self, delay: Delay, inputs: Batch | None, targets: Batch | None, alone: bool) -> dict[int, float]:
        """Begin a batch on the earlier version of the weights, and end the one before; return its weighted losses."""
        assert isinstance(self._engine, RollingEngine)
        if not alone:
            raise InputError(
                "with staleness 1 every batch has an update of its own: gradients of several cannot be added or "
                "weighted; plan a larger batch of more micro-batches"
            )
        parts, step = (self._parts(inputs, self.holds_first), self._parts(targets, self.holds_last)), self.moment.step
        version = delay.begin(step)
        version.updates.begin()
        self._stages = version.stages
        weights = self._weigh(parts[1])
        with self._around_step():
            losses = self._engine.begin(step, version.stages, *parts)
        self.moment.step, (self.modules, self.updates, _) = step + 1, delay.newest
        return {number: weights[number] * loss for number, loss in losses.items() if weights[number]}

    @contextmanager
    def _around_step(self) -> Iterator[None]:
        draws = any(self.fitted.flow.draws)
        with (
            FullySharded.passing() if self._fully else sharing_casts(self.precision, self.device),
            preserved_random_state(self.device) if draws else nullcontext(),
        ):
            yield

    def evaluate(self, inputs: Batch | None, targets: Batch | None) -> float:
        """Return the batch's mean loss in evaluation mode, the same number on every rank, without graph or update.

        Parameters
        ----------
        inputs, targets : Batch or None
            As for `step`.
        """
        self._end()
        parts = self._parts(inputs, self.holds_first), self._parts(targets, self.holds_last)
        weights = self._weigh(parts[1])
        with evaluating(self.modules.values()):
            _, losses = self._engine.infer(*parts)
        self._free()
        return self.shared_loss({n: weights[n] * loss for n, loss in losses.items() if weights[n]})

    def predict(self, inputs: Batch | None) -> Any:
        """Return the unsplit model's output for the whole batch in evaluation mode, on ranks with the last stage.

        Outputs of the micro-batches are concatenated along the first axis. Other ranks take part and get None.
        """
        self._end()
        with evaluating(self.modules.values()):
            found, _ = self._engine.infer(self._parts(inputs, self.holds_first), [None] * self.plan.micro_batches)
        self._free()
        if not self.holds_last:
            return None
        whole = {number: self.fitted.joined(parts) for number, parts in found.items()}
        rows = self._last_replicas.gathered(whole, self.fitted.boundaries[-1].outputs, self.device)
        return self.fitted.restored(
            tuple(torch.cat(row) if row[0].dim() else torch.stack(row) for row in zip(*rows, strict=True))
        )

    def shared_loss(self, losses: dict[int, float]) -> float:
        """Return the sum of all losses, on every rank."""
        own = sum(losses.values()) if self.tensor_group.tensor_rank == 0 else 0.0  # all processes of a rank have it
        total = torch.tensor([own], dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return float(total)

    def wait(self) -> None:
        """Wait until all parameters of the last update are here, under ZeRO-1 from other replicas.

        Any rank may call this alone. The next step and all methods of this class wait by themselves, so it is needed
        only by code that keeps parameters from before the step, or reads those of single layers.
        """
        for version in (self.modules, {} if self._delay is None else self._delay.earlier.modules):
            for module in version.values():
                module.wait()

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of the local stages."""
        for module in self.modules.values():
            yield from module.parameters()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters of the local stages with their names in the unsplit model."""
        for module in self.modules.values():
            yield from module.named_parameters()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of the local stages, with the names of the unsplit model; shards of sharded parameters."""
        return {name: value for module in self.modules.values() for name, value in module.state_dict().items()}

    def save(self, folder: str | Path, *, keep: int = 3, extra: Any = None) -> Path:
        """Save a checkpoint, on every rank: see `pipeplan_executor.checkpoint.save`."""
        from pipeplan_executor.checkpoint import save  # takes 0.75 s to import, which few runs need

        return save(self._state(), folder, keep=keep, extra=extra)

    def load(self, path: str | Path, *, weights_only: bool = False) -> "Restored":
        """Load a checkpoint, on every rank: see `pipeplan_executor.checkpoint.load`."""
        from pipeplan_executor.checkpoint import load

        return load(self._state(), path, weights_only=weights_only)

    def _state(self) -> "TrainingState":
        """Return the state that checkpoints save and restore."""
        from pipeplan_executor.checkpoint import TrainingState

        self._end()
        self.wait()
        return TrainingState(
            plan=self.plan,
            rank=self.tensor_group.rank,
            model=self.workload.module,
            modules=self.modules,
            copies=self.fitted.copies,
            shards=self.shards,
            updates=self.updates,
            moment=self.moment,
            accumulates=self.accumulates,
            earlier={} if self._delay is None else self._delay.earlier.modules,
        )

    def _free(self) -> None:
        """Free the weights that are still gathered at level 2 of ZeRO."""
        for number, fully in self._fully.items():
            fully.free(self.modules[number])

    def _once_per_step(self, action: Action) -> None:
        if self._delay is not None:
            self._delay.act(action, self.moment.step)
        elif action.kind is Kind.REDUCE:
            self.updates.reduce(action.stage, update_follows=self._updates)
            self._free()
        elif self._updates:
            self.updates.update(action.stage)

    def _parts(self, batch: Batch | None, needed: bool) -> list[Batch | None]:
        """Cut what a rank reads of a batch into micro-batches."""
        if not needed:
            return [None] * self.plan.micro_batches
        return self._share.parts(batch, self.dtype, self.device)

    def _weigh(self, targets: Sequence[Batch | None], weight: float = 1.0) -> list[float]:
        """Set and return the weight of each micro-batch's loss in the step; empty on ranks without the last stage."""
        weights = shares(self.workload.weight, targets) if self.holds_last else []
        for stage in self._stages.values():
            stage.weights = [weight * share for share in weights]
        return weights

    def _loss(self, outputs: Tensors, targets: Batch) -> Tensor:
        return self.workload.loss(self.fitted.restored(outputs), targets)
