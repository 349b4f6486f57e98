"""The main door: a model, a cluster and a job in; a plan with its proof out."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pipeplan.cluster import Cluster
from pipeplan.drafting import draft
from pipeplan.errors import InfeasibleError, InputError, UndecidedError
from pipeplan.graph import PARTITIONS, applies
from pipeplan.intra_layer import divide
from pipeplan.job import Job, Objective, default_batch
from pipeplan.model import Model
from pipeplan.result import Result, Searched
from pipeplan.robust import Robust, as_robust
from pipeplan.robust.choice import choose
from pipeplan.search import opened
from pipeplan.search.any_order import ANY_ORDER, UNEQUAL, any_orders
from pipeplan.search.baselines import Baseline, baselines
from pipeplan.search.fit import explain_infeasible, overfull
from pipeplan.search.prove import Prover, Watch
from pipeplan.search.space import Space
from pipeplan.validate import validate_plan
from pipeplan_formulations.clock import Clock
from pipeplan_formulations.report import BeyondIntegersError, Limits, Status, Stop
from pipeplan_formulations.signals import listening

FOR_HEURISTICS = 0.2
"""Share of the time in which heuristics may begin."""
FOR_CHOICE = 0.3
"""Share of the time in which plans are compared where times vary."""
FOR_FAMILIES = 0.35
"""Share of the time in which schedule families are searched alone, where any order is wanted: the best of them is where
other orders begin."""


@listening()
def solve(
    model: Model | Any,
    cluster: Cluster,
    batch: int | None = None,
    *,
    job: Job | None = None,
    time_limit: float = 60.0,
    gap: float = 0.0,
    backend: str = "cpsat",
    workers: int = 2,
    seed: int = 0,
    robust: Robust | float | str | None = None,
    watch: Watch = lambda *_: None,
    example_inputs: Any = None,
    **wishes: Any,
) -> Result:
    """The best plan for one training step, and how far from the best it can at most be.

    SIGINT (Ctrl-C) and SIGTERM end the search; the best plan so far is the answer. A second one ends at once.

    Parameters
    ----------
    model : Model or torch.nn.Module
        A module is profiled first, on ``example_inputs``.
    cluster : Cluster
    batch : int
        Samples of one step. Only with ``objective='bottleneck'`` may it be left out.
    job : Job, optional
        Instead of ``batch`` and ``wishes``.
    time_limit : float
        Seconds of search; the answer then carries the bound reached.
    gap : float
        Relative gap at which to stop.
    backend : {'cpsat', 'cbc', 'exact'}
        Who solves the partition problems.
    robust : Robust, float or str, optional
        Times vary by so much (``0.05``, ``'5%'``, or more of it in a `Robust`): after the search, the plans tried are
        compared in sampled steps, and that of the least mean or quantile is the answer. The bound stays that of the
        undisturbed step.
    watch : callable
        ``watch(incumbent, bound, open)`` in nanoseconds, whenever something improved.
    example_inputs : tensor or tuple of tensors, optional
        For a torch module: one batch, whose first axis counts samples.
    **wishes
        Other fields of `Job`, like ``optimizer='adam'`` or ``memory=16 * 2**30``.

    Raises
    ------
    InfeasibleError
        If no plan fits; the text says what would.
    UndecidedError
        If the search was stopped before it had a plan.
    InputError
        If the questions make no sense together.
    """
    clock = Clock(Limits(time_limit))
    if job is None:
        if batch is None and not (isinstance(model, Model) and wishes.get("objective") == Objective.BOTTLENECK):
            raise InputError("say how many samples a step has: batch=N")
        job = Job(batch=default_batch(model) if batch is None else batch, **wishes)
    question = None if robust is None else as_robust(robust)
    if question is not None:
        _check_robust(job)
    model = model if isinstance(model, Model) else _profiled(model, example_inputs, job, cluster)
    if job.intra_layer:
        whole = partial(solve, model, cluster, gap=gap, backend=backend, workers=workers, seed=seed, watch=watch)
        limits = Limits(time_limit, gap, workers, seed)
        return divide(lambda own, seconds: whole(job=own, time_limit=seconds), model, cluster, job, limits, watch)
    space = Space(model, cluster, job)
    if why := overfull(space):
        raise InfeasibleError(why)

    compared = FOR_CHOICE * time_limit if question is not None else 0.0
    prover = Prover(cluster, Limits(clock.left - compared, gap, workers, seed), backend, watch)
    rows: Mapping[str, Baseline] = {}
    try:
        for node in opened(space):
            prover.push(node)
        for late in any_orders(space):
            prover.postpone(late)
        if space.large:  # heuristics' plans are late there, and would close little
            prover.run(reserve=prover.limits.time * FOR_HEURISTICS)
        rows = baselines(
            space,
            prover.limits.time * FOR_HEURISTICS,
            prover.offer,
            known=prover.incumbent is not None,
            at_most=max(prover.rest, 0.0) / 2 + prover.slack,
            affords=prover.affords,
        )
        prover.run(reserve=prover.limits.time * (1 - FOR_FAMILIES) if space.any_order else 0)
        if prover.stop is not Stop.INTERRUPT:
            prover.recall()
            prover.run()
    except KeyboardInterrupt:  # Ctrl-C hands back the best plan so far
        prover.stop = Stop.INTERRUPT
    except BeyondIntegersError as error:
        raise InputError(
            f"a step of {job.batch} samples takes too long to be counted in nanoseconds ({error}); ask about fewer"
        ) from error

    if prover.incumbent is None:
        if prover.stop in (Stop.TIME, Stop.INTERRUPT):
            raise UndecidedError(prover.stop, prover.bound, prover.unaffordable)
        raise InfeasibleError(explain_infeasible(space))
    chosen, choice = prover.incumbent, None
    if question is not None:
        tried = [*prover.tried, *(row.judged for row in rows.values() if row.judged is not None)]
        finish = prover.pace.finish(prover.incumbent.candidate)
        rest = Clock(Limits(time=max(clock.left - max(finish - prover.slack, 0.0), 0.0)))
        try:
            choice = choose(space, prover.incumbent, tried, prover.bound, question, seed, rest)
            prover.stop = Stop.TIME if choice is None else prover.stop
        except KeyboardInterrupt:
            prover.stop = Stop.INTERRUPT
        chosen = prover.incumbent if choice is None else choice.chosen
    plan = draft(model, cluster, job, chosen, prover.bound)
    validate_plan(plan, model, cluster)
    return Result(
        plan=plan,
        timeline=chosen.timeline,
        job=job,
        status=Status.OPTIMAL if prover.bound == chosen.value else Status.FEASIBLE,
        stop=prover.stop,
        value=chosen.value,
        bound=prover.bound,
        wall=clock.wall,
        backend=backend,
        searched=_searched(space, prover),
        baselines=rows,
        runners_up=prover.ranking(),
        robust=choice,
    )


def _check_robust(job: Job) -> None:
    if job.objective is not Objective.STEP:
        raise InputError(
            "a robust choice compares disturbed steps, and the bottleneck has none; ask for the objective 'step'"
        )
    if job.intra_layer:
        raise InputError("a robust choice knows plans of whole layers only; leave out robust or intra_layer")


def _searched(space: Space, prover: Prover) -> Searched:
    searched = Searched(
        micro_batch_sizes=space.sizes,
        schedules=space.schedules,
        opened=prover.opened,
        recompute=space.job.recompute.value,
        order=space.job.order.value,
    )
    if space.any_order:
        searched = replace(searched, schedules_reach=ANY_ORDER, not_searched=(*searched.not_searched[:-1], UNEQUAL))
    return replace(searched, partitions=PARTITIONS) if applies(space) else searched


def _profiled(module: Any, example_inputs: Any, job: Job, cluster: Cluster) -> Model:
    from pipeplan.profile import profile

    if example_inputs is None:
        raise InputError("solve() got a module without example_inputs; pass one batch, so that it can be profiled")
    sizes = tuple(size for size in (1, 2, 4, 8, 16) if job.batch % size == 0)
    name = cluster.devices[0].kind.name
    return profile(module, example_inputs, micro_batches=sizes, optimizer=job.optimizer, device_name=name)
