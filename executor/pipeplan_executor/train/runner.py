"""`run`: run a plan for a few steps and report what was measured."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from pipeplan.core.errors import InputError
from pipeplan.core.figures import real, shown, whole
from pipeplan.core.options import LONGEST, require
from pipeplan.core.plan import Plan
from pipeplan.core.validate import validate_schedule
from pipeplan.frontend.profile.passes import autocast
from pipeplan_executor.checkpoint.lock import release_all
from pipeplan_executor.processes.devices import here
from pipeplan_executor.processes.launcher import joined_world, launch
from pipeplan_executor.runtime.exchange import gather_bytes
from pipeplan_executor.runtime.recorder import now
from pipeplan_executor.sharding.declared import TensorParallel, declared
from pipeplan_executor.sharding.processes import Processes, check_world
from pipeplan_executor.stages.fully_sharded import check_sharded_plan
from pipeplan_executor.stages.on_meshes import on_meshes
from pipeplan_executor.stages.source import Source, draw
from pipeplan_executor.stages.split import fit
from pipeplan_executor.train.memory import forget_peak, peak
from pipeplan_executor.train.pipeline import LEARNING_RATE, Pipeline
from pipeplan_executor.train.prefill import prefill_time
from pipeplan_executor.train.progress import running
from pipeplan_executor.train.report import RunReport, Seen, report_of
from pipeplan_executor.train.saving import Saving
from pipeplan_executor.train.verify import verify


@dataclass(frozen=True)
class _Options:
    """Arguments of `run` for every process."""

    steps: int
    warmup: int
    verify: bool
    seed: int
    weights: str | None
    learning_rate: float
    saving: Saving | None
    precision: str | None
    progress: bool
    tensor_parallel: TensorParallel
    prefill: bool


def run(
    plan: Plan,
    source: Source,
    *,
    steps: int = 5,
    warmup: int = 2,
    verify: bool = False,
    seed: int = 0,
    weights: str | Path | None = None,
    learning_rate: float = LEARNING_RATE,
    timeout: float = 60.0,
    saving: Saving | None = None,
    restarts: int = 0,
    device: str = "auto",
    precision: str | None = None,
    progress: bool = False,
    tensor_parallel: TensorParallel | int | None = None,
    prefill: bool = False,
) -> RunReport:
    """Train for a few steps on random batches of the workload.

    With ``saving``, ``warmup + steps`` is the length of the whole training: a run that continues from a checkpoint does
    the remaining steps, and times all except its first ``warmup`` ones.

    Parameters
    ----------
    plan : Plan
    source : Workload, str or callable
        ``'module:function'``, a function that returns a `pipeplan.Workload`, or the workload itself.
    steps, warmup : int
        Number of timed steps, and of steps before them.
    verify : bool
        Compare loss and gradients of one step with the unsplit model's (see `train.verify`).
    weights : path, optional
        A state-dict file of the unsplit model; otherwise weights are drawn from ``seed``.
    timeout : float
        Seconds within which a lost rank ends the run.
    saving : Saving, optional
        Folder and frequency of checkpoints.
    restarts : int
        Number of times that all ranks start again after one was lost, from the latest checkpoint or the beginning.
    device : {'auto', 'cpu', 'cuda'}
        See `pipeplan_executor.processes.devices.choose`.
    precision : {'bf16', 'fp16'}, optional
        See `pipeplan_executor.Pipeline`; ``verify`` compares without autocast.
    progress : bool
        Rank 0 shows its steps on standard error (see `pipeplan_executor.train.progress`).
    tensor_parallel : TensorParallel or int, optional
        Number of processes that share a rank: see `pipeplan_executor.Pipeline`. A plan with teams has it.
    prefill : bool
        Steps are predictions: the forwards of the plan's order alone, in evaluation mode, without losses. With token
        slices that is chunked prefill.

    Raises
    ------
    InputError
        If devices are missing, a folder has checkpoints of another run, or parameters cannot be sharded as declared.
    PlanError
        If the plan is broken or does not belong to the model, before any process is started.
    RunError
        If a rank fails.

    Examples
    --------
    >>> report = pipeplan_executor.run(plan, "my_project:build", steps=10, verify=True)  # doctest: +SKIP
    >>> report.error < 1e-10                                                              # doctest: +SKIP
    """
    require(plan, Plan)
    if saving is not None:
        require(saving, Saving)
    real(learning_rate, "the learning rate")
    whole(steps, "steps"), whole(warmup, "warm-up steps")
    if not (steps or verify):
        raise InputError(f"nothing to do: {steps} steps after {warmup} warm-up steps, verify {verify}")
    validate_schedule(plan.schedule, len(plan.stages), plan.micro_batches, plan.pipeline.placement, plan.pipeline.tied)
    whole(restarts, "restarts")
    whole(seed, "the seed", 0, 2**63 - 1)
    real(timeout, "the timeout (seconds)", most=LONGEST, above=True)
    autocast(precision, torch.device("cpu"))  # refuses an unknown precision
    wanted = declared(plan, tensor_parallel)
    processes = Processes.of(plan, wanted.size)
    check_sharded_plan(plan)
    started = joined_world()
    if started is None:  # otherwise this is a rank, and its Pipeline checks the rest
        on_meshes(fit(plan, source, both_modes=False), wanted, None, torch.device("cpu"))
    else:
        check_world(plan, started, processes)
    if saving is not None:
        saving.check()
    if not isinstance(weights, str | Path | None):
        raise InputError(f"weights names a file with a state dict, not {shown(weights)}")
    path = None if weights is None else str(weights)
    if prefill and (saving is not None or verify or plan.staleness):
        raise InputError("forwards alone (prefill) train nothing: leave out checkpoints, verify and staleness")
    options = _Options(steps, warmup, verify, seed, path, learning_rate, saving, precision, progress, wanted, prefill)
    lost: list[str] = []
    report: RunReport = launch(
        _rank,
        processes.count,
        plan,
        source,
        options,
        timeout=timeout,
        restarts=restarts,
        device=device,
        on_restart=lost.append,
    )
    return replace(report, restarts=tuple(lost))


def _rank(plan: Plan, source: Source, options: _Options) -> RunReport:
    """Train, verify and report on one process."""
    seen = Seen()
    if options.steps:
        try:
            _train(plan, source, options, seen)
        finally:
            release_all()
    if options.verify:  # last, so that the unsplit model is not part of the peaks
        seen.verdict = verify(plan, source, options.seed, options.weights, options.tensor_parallel)
    everyone = [Seen.decoded(data) for data in gather_bytes(seen.encoded())]
    processes = Processes.of(plan, options.tensor_parallel.size)
    return report_of(everyone, processes)


def _train(plan: Plan, source: Source, options: _Options, seen: Seen) -> None:
    device = here()
    pipeline = Pipeline(
        plan,
        source,
        seed=options.seed,
        weights=options.weights,
        device=device,
        learning_rate=options.learning_rate,
        precision=options.precision,
        tensor_parallel=options.tensor_parallel,
        evaluates=options.prefill,
    )
    seen.repeated = pipeline.fitted.repeated
    # continue from a checkpoint if there is one; predictions are shown only for as many processes as they are for
    total = options.warmup + options.steps
    if options.saving is not None:
        seen.first = options.saving.restore(pipeline)
    seen.rolling = plan.staleness > 0 or bool(plan.priority)
    predicted = prefill_time(plan) if options.prefill else plan.predicted
    shown = replace(plan, step_time=predicted if options.tensor_parallel.size == plan.team else 0)
    losses: list[float] = []
    told = options.progress and not options.prefill  # which has no losses to tell
    with running(shown, total, quiet=not told or dist.get_rank() > 0) as on_step:
        for number in range(seen.first, total):
            timed = number >= seen.first + options.warmup
            if number == seen.first + options.warmup:
                forget_peak()
            # every process draws the whole batch; the barrier starts the step at the same time on all
            inputs, targets = draw(pipeline.workload, plan.batch, pipeline.moment.seed, step=number)
            inputs_here = inputs if pipeline.holds_first else None
            targets_here = targets if pipeline.holds_last else None
            if not seen.rolling:
                dist.barrier()
            start = now()
            loss = 0.0
            if options.prefill:
                pipeline.predict(inputs_here)
                end = now()
            elif seen.rolling:
                loss = pipeline.step(inputs_here, targets_here)  # with staleness 1 of the batch before
                end = now()
            else:
                own = pipeline.compute(inputs_here, targets_here)
                end = now()
                loss = pipeline.shared_loss(own)
            losses.append(loss)
            if timed:
                seen.starts.append(start)
                seen.ends.append(end)
                seen.spans.append(pipeline.recorder.spans)
            if told:
                rank = pipeline.tensor_group.rank
                # without a barrier this rank's own: what all ranks tell each other would be one
                peaks = [peak()] if seen.rolling else _largest(peak(), rank, len(plan.ranks), device)
                on_step(number + 1, loss, end - start, peaks)
            if options.saving is not None:
                options.saving.after(pipeline, number + 1, total)
    losses = [*losses[1:], pipeline.drain()] if plan.staleness and losses else losses
    seen.losses = [] if options.prefill else losses[options.warmup :]
    pipeline.wait()
    seen.peak = peak()


def _largest(value: int, rank: int, ranks: int, device: torch.device) -> list[int]:
    """Return the largest value of each rank's processes."""
    values = torch.zeros(ranks, dtype=torch.int64, device=device)
    values[rank] = value
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return [int(each) for each in values]
