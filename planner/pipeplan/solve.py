"""The main door: a model, a cluster and a job in; a plan with its proof out."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InfeasibleError, InputError, PipeplanError, UndecidedError
from pipeplan.core.job import Job, Objective, default_batch
from pipeplan.core.model import Model
from pipeplan.core.options import asked_limits, require_question
from pipeplan.core.units import format_time
from pipeplan.core.validate import validate_plan
from pipeplan.core.wording import hint
from pipeplan.costs.sources import sources
from pipeplan.search import root_nodes
from pipeplan.search.alternatives import why_infeasible
from pipeplan.search.any_order import any_orders
from pipeplan.search.branch_and_bound import OnProgress, PlanSearch
from pipeplan.search.build_plan import build_plan
from pipeplan.search.heuristics import Baseline, baselines
from pipeplan.search.infeasible import total_memory_shortfall
from pipeplan.search.intra_layer import divide
from pipeplan.search.result import Result
from pipeplan.search.robust import Robust, as_robust
from pipeplan.search.robust.choice import choose
from pipeplan.search.scope import searched
from pipeplan.search.space.space import Space
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import BeyondIntegersError, Limits, Status, Stop
from pipeplan_formulations.common.signals import interruptible, listening, nearly_done

FOR_HEURISTICS = 0.2
"""Share of the time in which heuristics may begin."""
FOR_CHOICE = 0.3
"""Share of the time in which plans are compared where times vary."""
FOR_FAMILIES = 0.35
"""Share of the time in which schedule families are searched alone, where any order is wanted: the best of them is where
other orders begin."""
FOR_REASONS = 0.05
"""Share of the time that may be spent besides on why no plan fits."""


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
    on_progress: OnProgress = lambda *_: None,
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
        nominal step.
    on_progress : callable
        ``on_progress(incumbent, bound, open)`` in nanoseconds, whenever something improved.
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
    limits = asked_limits(time_limit, gap, backend, workers, seed)
    clock = Clock(limits)
    if job is None:
        if batch is None and not (isinstance(model, Model) and wishes.get("objective") == Objective.BOTTLENECK):
            raise InputError("say how many samples a step has: batch=N")
        try:
            job = Job(batch=default_batch(model) if batch is None else batch, **wishes)
        except TypeError as error:  # a word that Job does not know
            unknown = next((name for name in wishes if name not in Job.__dataclass_fields__), None)
            if unknown is None:
                raise
            known = tuple(Job.__dataclass_fields__)
            listed = ", ".join(known)
            raise InputError(
                f"solve() knows no {unknown!r}{hint(unknown, known)}; wishes are fields of Job: {listed}"
            ) from error
    elif batch is not None or wishes:
        beside = ", ".join([*(["batch"] if batch is not None else []), *wishes])
        raise InputError(f"job and {beside} are both given; write everything into the job, or leave the job out")
    require_question(None, cluster, job)
    question = None if robust is None else as_robust(robust)
    if question is not None:
        _check_robust(job)
    model = model if isinstance(model, Model) else _profiled(model, example_inputs, job, cluster)
    if job.intra_layer:
        whole = partial(
            solve, model, cluster, gap=gap, backend=backend, workers=workers, seed=seed, on_progress=on_progress
        )
        return divide(lambda own, seconds: whole(job=own, time_limit=seconds), model, cluster, job, limits, on_progress)
    space = Space(model, cluster, job)
    if space.impossible or total_memory_shortfall(space):
        raise InfeasibleError(why_infeasible(space, limits.time))

    compared = FOR_CHOICE * time_limit if question is not None else 0.0
    searching = replace(limits, time=clock.left - compared)
    search = PlanSearch(searching, on_progress, cluster=cluster, backend=backend, outside=space.outside)
    rows: Mapping[str, Baseline] = {}
    try:
        with interruptible():
            for node in root_nodes(space):
                search.push(node)
            for late in any_orders(space):
                search.defer(late)
        if space.large:  # heuristics' plans are late there, and would close little
            search.run(reserve=search.limits.time * FOR_HEURISTICS)
        with interruptible():
            rows = baselines(
                space,
                search.limits.time * FOR_HEURISTICS,
                search.submit,
                known=search.incumbent is not None,
                at_most=max(search.rest, 0.0) / 2 + search.slack,
                affords=search.affords,
            )
        search.run(reserve=search.limits.time * (1 - FOR_FAMILIES) if space.any_order else 0)
        if search.stop is not Stop.INTERRUPT:
            search.resume()
            search.run()
    except KeyboardInterrupt:  # Ctrl-C hands back the best plan so far
        search.stop = Stop.INTERRUPT
    except BeyondIntegersError as error:
        raise InputError(
            f"a step of {job.batch} samples takes too long to be counted in nanoseconds ({error}); ask about fewer"
        ) from error

    if search.incumbent is None:
        if search.stop in (Stop.TIME, Stop.INTERRUPT):
            raise UndecidedError(search.stop, search.bound, search.unaffordable)
        if not search.refuted and search.unaffordable is not None:
            raise UndecidedError(Stop.TIME, search.bound, search.unaffordable)
        if not search.refuted:
            raise PipeplanError(
                f"no plan was found, and it is not proved that none fits: no plan that does takes less than "
                f"{format_time(search.bound)}; ask for fewer choices (--depths, --replicas, --schedules)"
            )
        raise InfeasibleError(why_infeasible(space, max(search.left, FOR_REASONS * time_limit)))
    chosen, choice = search.incumbent, None
    if question is not None:
        tried = [
            *search.tried,
            *(row.evaluated for row in rows.values() if row.evaluated is not None and not row.outside),
        ]
        finish = search.pace.finish(search.incumbent.candidate)
        rest = Clock(Limits(time=max(clock.left - max(finish - search.slack, 0.0), 0.0)))
        try:
            choice = choose(space, search.incumbent, tried, search.bound, question, seed, rest)
            search.stop = Stop.TIME if choice is None else search.stop
        except KeyboardInterrupt:
            search.stop = Stop.INTERRUPT
        chosen = search.incumbent if choice is None else choice.chosen
    with nearly_done():
        plan = build_plan(model, cluster, job, chosen, search.bound)
        validate_plan(plan, model, cluster)
        return Result(
            plan=plan,
            timeline=chosen.timeline,
            job=job,
            status=Status.OPTIMAL if search.bound == chosen.value else Status.FEASIBLE,
            stop=search.stop,
            value=chosen.value,
            bound=search.bound,
            wall=clock.wall,
            backend=backend,
            searched=searched(space, search.opened),
            costs=sources(model, cluster, space.sizes),
            baselines=rows,
            runners_up=search.ranking(),
            robust=choice,
        )


def _check_robust(job: Job) -> None:
    if job.objective is not Objective.STEP:
        raise InputError(
            "a robust choice compares perturbed steps, and the bottleneck has none; ask for the objective 'step'"
        )
    if job.intra_layer:
        raise InputError("a robust choice knows plans of whole layers only; leave out robust or intra_layer")


def _profiled(module: Any, example_inputs: Any, job: Job, cluster: Cluster) -> Model:
    from pipeplan.frontend.profile import profile

    if example_inputs is None:
        raise InputError(
            f"solve() got {type(module).__name__} for a model, and no example_inputs; pass a Model (as of "
            "pipeplan.load_model), or a torch module and one batch, so that it can be profiled"
        )
    sizes = tuple(size for size in (1, 2, 4, 8, 16) if job.batch % size == 0)
    name = cluster.devices[0].kind.name
    return profile(module, example_inputs, micro_batches=sizes, optimizer=job.optimizer, device_name=name)
