"""`explain` and `explain_plan`: build the explanation of a result, or of a plan alone."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeplan.analysis.explain.changes import changes
from pipeplan.analysis.explain.explanation import Explanation
from pipeplan.analysis.explain.feasible import limits_never_bind
from pipeplan.analysis.explain.outcome import Outcome, no_effect, outcome
from pipeplan.analysis.explain.path import portions
from pipeplan.analysis.explain.room import rooms
from pipeplan.analysis.explain.sensitivities import groups, joint_set, sensitivities
from pipeplan.analysis.explain.setting import Setting, uses
from pipeplan.analysis.explain.sums import sums
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job, Objective
from pipeplan.core.model import Model
from pipeplan.core.options import SEED, TIME, WORKERS, asked_limits, require, require_callback
from pipeplan.core.plan import Plan
from pipeplan.core.units import format_time
from pipeplan.core.wording import counted, team_suffix
from pipeplan.search.result import Result
from pipeplan.simulate import simulate
from pipeplan.solve import solve
from pipeplan.solve.question import LINKS, READING, asked
from pipeplan_formulations.common.signals import listening, received


@listening()
def explain(
    model: Model | str | Path | Any,
    cluster: Cluster | str | Path | None = None,
    batch: int | Job | None = None,
    *,
    job: Job | None = None,
    result: Result | None = None,
    time_limit: float = TIME,
    each: float = 20.0,
    gap: float = 0.0,
    backend: str = "cpsat",
    workers: int = WORKERS,
    seed: int = SEED,
    on_progress: Callable[[str], None] = lambda _: None,
    example_inputs: Any = None,
    **options: Any,
) -> Explanation:
    """Solve a question and explain the answer: bottlenecks, critical path in words, and the effect of changes.

    Parameters
    ----------
    result : Result, optional
        The answer of `pipeplan.solve` for ``model`` and ``cluster``, which holds the job; in place of the batch or job
        and of ``time_limit``.
    each : float
        Seconds for each changed problem.
    gap : float
        At which the search stops; what remains of a changed problem is reported as "at most".
    on_progress : callable
        Called with the label of each change before it is solved.
    model, cluster, batch, job, time_limit, backend, workers, seed, example_inputs, **options
        As in `pipeplan.solve`.

    Raises
    ------
    InfeasibleError
        If no plan fits; `remedies` finds the smallest changes with which one does.
    InputError
        If the objective is not the step time.

    Examples
    --------
    >>> result = pipeplan.solve("vgg-16", "4-v100-nvlink", batch=64, depths=2, replicas=1, schedules="gpipe")
    >>> found = pipeplan.explain("vgg-16", "4-v100-nvlink", result=result, each=0.01)
    >>> sum(portion.time for portion in found.path) == found.step  # the critical path has no gap
    True
    """
    limits = asked_limits(each, gap, backend, workers, seed)
    require_callback(on_progress)
    if result is not None:
        require(result, Result)
        _require_alone(batch, job, options, time_limit)
        job = result.job
    question = asked(model, cluster, batch, job=job, example_inputs=example_inputs, asker="explain", **options)
    model, cluster, job = question.model, question.cluster, question.job
    require_step(job.objective)
    if result is not None:
        _require_same(result.plan, model, cluster)
    else:
        how: dict[str, Any] = {
            "time_limit": time_limit,
            "gap": gap,
            "backend": backend,
            "workers": workers,
            "seed": seed,
        }
        result = solve(model, cluster, job=job, price_regular=False, **how)  # a change below prices it
        result = replace(result, costs=question.stated(result.costs))
    plan = result.plan
    tried: list[Outcome] = []
    memory: Outcome | None = None
    enough = limits_never_bind(model, cluster, job)
    with suppress(KeyboardInterrupt):  # after Ctrl-C, return what is known so far
        for change in changes(model, cluster, job, plan) if not received() else ():
            on_progress(change.label)
            if change.frees_memory and enough:
                tried.append(no_effect(change, result, "no plan can need more memory than there is"))
            else:
                tried.append(outcome(model, change, result, limits=limits, backend=backend))
            if change.lifts_limits:
                memory = tried[-1]
            elif change.frees_memory and memory is not None:
                tried[-1] = tried[-1].within(memory)
    found = _explanation(Setting(plan, result.timeline), model, cluster, job, memory, tuple(tried))
    return replace(found, costs=result.costs, searched=result.searched)


def require_step(objective: str) -> None:
    """Refuse another objective than the time of one step.

    Raises
    ------
    InputError
        Naming it.
    """
    if objective != Objective.STEP:
        late = ", and --staleness, which needs it" if objective == Objective.PERIOD else ""
        raise InputError(f"an explanation is about one step; leave out --objective {objective}{late}")


def _require_alone(batch: object, job: object, options: Mapping[str, object], time_limit: float) -> None:
    """Refuse what a result would make superfluous."""
    own = {name: value for name, value in options.items() if name not in (*LINKS, *READING)}
    given = {"batch": batch, "job": job, **own, "time_limit": None if time_limit == TIME else time_limit}
    beside = [name for name, value in given.items() if value is not None]
    if beside:
        raise InputError(f"a result is given, which holds its job; leave out {' and '.join(beside)}, or the result")


def _require_same(plan: Plan, model: Model, cluster: Cluster) -> None:
    """Refuse a result of another question."""
    if (plan.fingerprint, plan.cluster) != (model.fingerprint, cluster.name):
        raise InputError(
            f"the result is for {plan.model} on {plan.cluster}, not for {model.name} on {cluster.name}; pass the model "
            "and the cluster that it was found for"
        )


def explain_plan(plan: Plan) -> Explanation:
    """Explain a plan without its model, cluster and job: everything except the effect of changes.

    Raises
    ------
    InputError
        If the objective of the plan is not the step time; of a long run only one whose sums run front layers first.
    """
    if plan.priority:
        return _explanation(Setting(plan, simulate(plan.schedule, plan.pipeline)), None, None, None, None, ())
    if plan.period is not None:
        raise InputError("the plan is for a long run; solve with --objective step to have a step explained")
    timeline = simulate(plan.schedule, plan.pipeline)
    if timeline.makespan != plan.step_time:
        raise InputError(
            f"the plan states {format_time(plan.step_time)} and its step takes {format_time(timeline.makespan)}: it "
            "is about the bottleneck of an endless pipeline; solve with --objective step to have a step explained"
        )
    return _explanation(Setting(plan, timeline), None, None, None, None, ())


def _explanation(
    setting: Setting,
    model: Model | None,
    cluster: Cluster | None,
    job: Job | None,
    memory: Outcome | None,
    outcomes: tuple[Outcome, ...],
) -> Explanation:
    plan = setting.plan
    path = portions(setting)
    alone = sensitivities(setting)
    shape = f"{plan.shape} on {counted(len(plan.ranks), 'device' if plan.team == 1 else 'team')}"
    many = f"{counted(plan.micro_batches, 'micro-batch')} of {plan.micro_batch}{plan.cut}"
    many += team_suffix(plan.teams, plan.parallelism, mesh=plan.mesh)
    figure = f"period {format_time(plan.value)}" if plan.priority else f"step {format_time(setting.step)}"
    times = f"{figure}, {plan.proof}"
    return Explanation(
        title=f"{plan.model} on {plan.cluster}: {shape}, {many}, {times}",
        step=setting.step,
        bound=plan.bound,
        throughput=plan.yardstick.throughput(plan.batch, setting.step),
        path=path,
        uses=uses(setting),
        rooms=rooms(setting, model, cluster, job),
        sensitivities=alone,
        groups=groups(setting),
        joint=() if alone else joint_set(setting),
        sums=tuple(sums(plan)),
        memory=memory,
        outcomes=outcomes,
    )
