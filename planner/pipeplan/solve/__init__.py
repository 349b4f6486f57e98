"""`solve()`: find the best plan for a model, a cluster and a job, with a proven bound."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InfeasibleError, InputError, UndecidedError
from pipeplan.core.figures import shown
from pipeplan.core.job import Job, Objective
from pipeplan.core.model import Model
from pipeplan.core.options import asked_limits, require, require_callback
from pipeplan.core.parts import switch
from pipeplan.core.perturbation import Robust, as_robust
from pipeplan.search.branch_and_bound import OnProgress
from pipeplan.search.heuristics import unknown
from pipeplan.search.irregular import Irregular
from pipeplan.search.proposals import Proposals
from pipeplan.search.result import Result
from pipeplan.solve.answer import choice_of, result
from pipeplan.solve.question import Question, asked
from pipeplan.solve.solving import Means, Solving
from pipeplan_formulations.common.report import Stop
from pipeplan_formulations.common.signals import listening

FOR_CHOICE = 0.3
"""Share of the time limit in which plans are compared where times vary."""
FOR_IRREGULAR, LONGER, LEAST = 0.3, 5.0, 5.0
"""Share of the time limit that is left for plans that need not be regular; they have at most so many times what regular
ones took, or so many seconds."""


@listening()
def solve(
    model: Model | str | Path | Any,
    cluster: Cluster | str | Path | None = None,
    batch: int | Job | None = None,
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
    proposals: Proposals | None = None,
    price_regular: bool = True,
    unequal_slices: bool = False,
    front_first: bool = False,
    loss_budget: float = 0.0,
    beside: Sequence[str] = (),
    **options: Any,
) -> Result:
    """Find the best plan for one training step, with a proven bound on its distance from the optimum.

    SIGINT (Ctrl-C) and SIGTERM end the search and return the best plan so far. A second signal ends the process at
    once.

    Parameters
    ----------
    model : Model, str, Path or torch.nn.Module
        A model, a name in ``datasets/``, or a file. A module is profiled first, on ``example_inputs``.
    cluster : Cluster, str or Path, optional
        A cluster, a name in ``datasets/``, or a file; None for a workload file with devices of its own, or with
        ``devices``.
    batch : int or Job, optional
        Samples of one step. It is optional with ``objective='bottleneck'`` only. A job stands for ``batch`` and
        ``options``.
    job : Job, optional
        The same, by name.
    time_limit : float
        Seconds of search; the result holds the bound reached by then.
    gap : float
        Relative gap at which to stop.
    backend : {'cpsat', 'cbc', 'exact'}
        Solver of the partition problems.
    workers : int
        Threads of the solver. With two or more, and where plans are too many to list, a process of its own searches
        locally and, where there are teams, takes part in the proof. With one, equal questions that are decided within
        the time have equal answers.
    seed : int
        For random choices of solvers and of the local search.
    robust : Robust, float or str, optional
        Relative spread of times (``0.05``, ``'5%'``, or a `Robust` with more options). After the search, the plans
        tried are compared in sampled steps, and the one with the least mean or quantile is returned. The bound remains
        that of the nominal step.
    on_progress : callable
        ``on_progress(incumbent, bound, open)`` in nanoseconds, called after every improvement.
    example_inputs : tensor or tuple of tensors, optional
        For a torch module: one batch, whose first axis counts samples.
    proposals : Proposals, optional
        What heuristics proposed for the same model, cluster and job under other schedules.
    price_regular : bool
        For a job that asks for regular plans: use up to 30 % of the time limit for plans that need not be regular, and
        state what regularity costs.
    unequal_slices : bool
        For a job with ``slices``: cut the answer's sequences again, into slices of unlike lengths, if that is faster
        (`Result.recut`).
    front_first : bool
        With the objective 'period': also price plans found, and data parallelism, with gradients that are summed front
        layers first while the next step begins (`Result.front_first`).
    loss_budget : float
        The same, where this share of a stage's gradients, in [0, 0.5), need not arrive when they are added.
    beside : sequence of str
        Partitioners and baseline planners whose plans are always judged, even if their own computation takes longer
        than the time limit. The others read "not tried" then.
    **options
        Other fields of `Job`, like ``optimizer='adam'``, ``depths=2`` or ``memory='16GiB'``; ``merge_misbooked`` and
        ``corrected`` for importers; ``devices=4`` with ``bandwidth`` and ``latency`` in place of a cluster.

    Raises
    ------
    InfeasibleError
        If no plan fits; the text names changes that would.
    UndecidedError
        If the search ended before it had a plan, or a proof that there is none.
    InputError
        If the arguments are invalid or contradict each other.

    Examples
    --------
    >>> result = pipeplan.solve("vgg-16", "4-v100-nvlink", batch=64, depths=2, schedules="gpipe", gap=0.01)
    >>> result.gap <= 0.01
    True
    """
    limits = asked_limits(time_limit, gap, backend, workers, seed, draws=robust is not None)
    require_callback(on_progress)
    if proposals is not None:
        require(proposals, Proposals)
    _check_beside(beside)
    varying = None if robust is None else as_robust(robust)
    question = asked(model, cluster, batch, job=job, example_inputs=example_inputs, asker="solve", **options)
    if varying is not None:
        _check_robust(question.job)
    budget = _budget(question, front_first, loss_budget)
    means = Means(limits, backend, on_progress, proposals, beside)
    if question.job.intra_layer:
        return _divided(question, means)
    wants_price = question.job.regular and price_regular
    solving = Solving(question, means, time_limit * (FOR_CHOICE * (varying is not None) + FOR_IRREGULAR * wants_price))
    solving.run()
    choice = None if varying is None else choice_of(solving, varying)
    found = result(solving, choice, unequal_slices, budget)
    return _with_irregular(found, question, means, solving) if wants_price else found


def _budget(question: Question, front_first: bool, loss_budget: float) -> Fraction | None:
    """The share of gradients that may be lost where they are summed front layers first; None if they are not."""
    if front_first is False and isinstance(loss_budget, float) and loss_budget == 0:
        return None
    from pipeplan.search.front_first import as_loss_budget, check_front_first  # few jobs need it

    budget = as_loss_budget(loss_budget)
    if not switch(front_first, "front_first") and not budget:
        return None
    check_front_first(question.job, question.cluster, budget)
    return budget


def _divided(question: Question, means: Means) -> Result:
    """The best plan with divided layers, beside that of whole layers."""
    from pipeplan.fpga import divide  # few jobs need it

    def whole(job: Job, seconds: float) -> Result:
        how = _how(means) | {"on_progress": means.on_progress}
        return solve(question.model, question.cluster, job=job, time_limit=seconds, **how)

    found = divide(whole, question.model, question.cluster, question.job, means.limits, means.on_progress)
    return replace(found, costs=question.stated(found.costs))


def _with_irregular(found: Result, question: Question, means: Means, solving: Solving) -> Result:
    """The best regular plan, with what regularity costs."""
    clock = solving.clock
    seconds = 0.0 if found.stop is Stop.INTERRUPT else min(clock.left, max(LONGER * clock.wall, LEAST))
    return replace(found, irregular=_irregular(question, found.value, time_limit=seconds, **_how(means)))


def _how(means: Means) -> dict[str, Any]:
    """The arguments of another search with the same back end, gap, workers and seed."""
    limits = means.limits
    return {"gap": limits.gap, "workers": limits.workers, "seed": limits.seed, "backend": means.backend}


def _check_beside(beside: Sequence[str]) -> None:
    """Refuse names that no heuristic has."""
    if isinstance(beside, str) or not all(isinstance(name, str) for name in beside):
        raise InputError(
            f"beside lists names of heuristics, not {shown(beside)}; write them like ('alpa', 'pipedream')"
        )
    complaints = [*unknown(beside)]
    if complaints:
        raise InputError("; ".join(complaints))


def _irregular(question: Question, value: int, *, time_limit: float, **how: Any) -> Irregular:
    """What there is without the wish for regular plans, of which one takes ``value`` nanoseconds."""
    free = replace(question.job, regular=False, equal_replicas=False)
    try:
        found = None
        if time_limit > 0:
            found = solve(question.model, question.cluster, job=free, time_limit=time_limit, **how)
    except InfeasibleError:  # only regular plans leave devices out between stages, which a pin may ask for
        return Irregular(value, value)
    except UndecidedError as error:
        return Irregular(value, error.bound)
    except InputError:  # too many device groups for any order of actions
        found = None
    return Irregular(value, 0) if found is None else Irregular(found.value, found.bound)


def _check_robust(job: Job) -> None:
    if job.objective is not Objective.STEP:
        raise InputError(
            f"a robust choice compares perturbed steps, not what the objective {job.objective.value!r} minimises; ask "
            "for the objective 'step'"
        )
    if job.intra_layer:
        raise InputError("a robust choice supports plans of whole layers only; leave out robust or intra_layer")
