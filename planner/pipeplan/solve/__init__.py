"""`solve()`: find the best plan for a model, a cluster and a job, with a proven bound."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from pipeplan.core.cluster import Cluster
from pipeplan.core.collector import without_collector
from pipeplan.core.errors import InfeasibleError, InputError, UndecidedError
from pipeplan.core.figures import shown
from pipeplan.core.job import Job, Objective
from pipeplan.core.model import Model
from pipeplan.core.operators import Mix
from pipeplan.core.options import asked_limits, require, require_callback
from pipeplan.core.searched import Searched
from pipeplan.core.throughput import yardstick
from pipeplan.core.validate import validate_plan
from pipeplan.costs.sources import sources
from pipeplan.costs.teams.left_whole import left_whole
from pipeplan.search import joined_nodes, mixed_nodes, root_nodes, searches_locally
from pipeplan.search.alternatives import why_infeasible
from pipeplan.search.any_order import any_orders
from pipeplan.search.branch_and_bound import Node, OnProgress, PlanSearch
from pipeplan.search.build_plan import build_plan, shared_out
from pipeplan.search.evaluate import EvaluatedPlan
from pipeplan.search.heuristics import Baseline, Heuristics, unknown
from pipeplan.search.infeasible import promising
from pipeplan.search.intra_layer import divide
from pipeplan.search.irregular import Irregular
from pipeplan.search.local_search import Improver
from pipeplan.search.proposals import Proposals
from pipeplan.search.result import Result
from pipeplan.search.robust import Robust, as_robust
from pipeplan.search.robust.choice import choose
from pipeplan.search.scope import lists, searched
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces
from pipeplan.solve.question import asked
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import BeyondIntegersError, Limits, Status, Stop
from pipeplan_formulations.common.signals import interruptible, listening, nearly_done

FOR_HEURISTICS = 0.2
"""Share of the time limit in which heuristics may begin."""
FOR_CHOICE = 0.3
"""Share of the time limit in which plans are compared where times vary."""
FOR_IRREGULAR, LONGER, LEAST = 0.3, 5.0, 5.0
"""Share of the time limit that is left for plans that need not be regular; they have at most so many times what regular
ones took, or so many seconds."""
FOR_FAMILIES = 0.35
"""Share of the time limit in which only schedule families are searched, where any order is allowed: the best of them is
the start of the search for other orders."""
FOR_MIXES = 0.5
"""Share of the time limit that is left for stages with teams of unlike sizes, beside those of one size."""
FOR_TEAMS, FOR_A_PLAN = 0.5, 1.0
"""Share of the time limit in which teams are opened, and the seconds in which a first plan is sought before each."""
FOR_REASONS = 0.05
"""Share of the time limit that may be spent in addition on the reasons why no plan fits."""


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
        Threads of the solver. With two or more, and where plans are too many to list, a local search runs in a process
        of its own beside the proof. With one, equal questions that are decided within the time have equal answers.
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
    """
    limits = asked_limits(time_limit, gap, backend, workers, seed, draws=robust is not None)
    require_callback(on_progress)
    if proposals is not None:
        require(proposals, Proposals)
    _check_beside(beside)
    question = None if robust is None else as_robust(robust)
    asking = asked(model, cluster, batch, job=job, example_inputs=example_inputs, asker="solve", **options)
    model, cluster, job = asking.model, asking.cluster, asking.job
    clock = Clock(limits)
    if question is not None:
        _check_robust(job)
    if job.intra_layer:
        whole = partial(
            solve, model, cluster, gap=gap, backend=backend, workers=workers, seed=seed, on_progress=on_progress
        )
        found = divide(
            lambda own, seconds: whole(job=own, time_limit=seconds), model, cluster, job, limits, on_progress
        )
        return replace(found, costs=asking.stated(found.costs))
    questions = None if proposals is None else proposals.questions_at(job.schedules)
    spaces = Spaces(model, cluster, job, questions=questions, opening=Clock(Limits(time=FOR_TEAMS * limits.time)))
    compared = FOR_CHOICE * time_limit if question is not None else 0.0
    compared += FOR_IRREGULAR * time_limit * (job.regular and price_regular)
    searching = replace(limits, time=clock.left - compared)
    search = PlanSearch(searching, on_progress, cluster_of=spaces.cluster_of, backend=backend, outside=spaces.outside)
    search.unopened = spaces.least
    heuristics: Heuristics | None = None
    hopeful: list[Space] = []
    try:
        with interruptible():
            openings: Iterator[Iterable[Space]] = chain((tuple(spaces),), spaces.open_teams())
            alike: list[Node] = []
            for opened in map(promising, openings):
                hopeful += opened
                for space in opened:
                    for node in root_nodes(space):
                        if node.joins:
                            alike.append(node)
                        else:
                            search.push(node)
                    for late in any_orders(space):
                        search.defer(late)
                search.unopened = _not_open(spaces, alike)
                if max(job.teams, default=1) > 1:  # to find their splits takes time
                    search.find_plan(FOR_A_PLAN)
            for node in joined_nodes(alike):
                search.push(node)
            for mixed in spaces.mixed:
                for node in mixed_nodes(mixed):
                    search.defer(node)
        search.unopened = spaces.unopened
        if spaces.late and not any(True for _ in spaces):
            raise UndecidedError(Stop.TIME, search.bound)
        if not spaces.late and not hopeful and not spaces.mixed:
            raise InfeasibleError(why_infeasible(spaces, limits.time))
        if any(map(searches_locally, hopeful)):
            search.improver = Improver(spaces, seed, beside=workers > 1)
        large = any(space.large for space in hopeful)
        mixed_time = search.limits.time * FOR_MIXES * bool(spaces.mixed)
        if large:  # there, plans of heuristics come late and improve little
            search.run(reserve=max(search.limits.time * FOR_HEURISTICS, mixed_time))
        after = large and search.incumbent is not None
        with interruptible():
            heuristics = Heuristics(
                spaces,
                search.submit,
                incumbent=lambda: search.value,
                affords=search.affords,
                pace=search.pace,
                proposals=proposals,
                named=beside,
            )
            heuristics.begin(
                search.limits.time * FOR_HEURISTICS,
                max(search.left, 0.0) if after else max(search.rest, 0.0) / 2 + search.slack,
            )
        kept = heuristics.needed(search.limits.time)
        search.run(
            reserve=max(kept, search.limits.time * (1 - FOR_FAMILIES) if spaces.lowest.any_order else mixed_time)
        )
        if search.stop is not Stop.INTERRUPT:
            search.resume()
            search.run(reserve=kept)
        if search.stop is not Stop.INTERRUPT:
            with interruptible():
                heuristics.finish(search.left)
            search.run()
        if spaces.late and search.stop is Stop.EXHAUSTED:
            search.stop = Stop.TIME
    except KeyboardInterrupt:  # Ctrl-C returns the best plan so far
        search.stop = Stop.INTERRUPT
    except BeyondIntegersError as error:
        raise InputError(
            f"a step of {job.batch} samples takes too long to be counted in nanoseconds ({error}); ask about fewer"
        ) from error
    finally:
        if search.improver is not None:
            search.improver.close()

    rows: Mapping[str, Baseline] = {} if heuristics is None else heuristics.rows()
    if search.incumbent is None:
        if search.stop in (Stop.TIME, Stop.INTERRUPT):
            raise UndecidedError(search.stop, search.bound, search.unaffordable)
        if not search.refuted and search.unaffordable is not None:
            raise UndecidedError(Stop.TIME, search.bound, search.unaffordable)
        if not search.refuted:
            raise UndecidedError(Stop.EXHAUSTED, search.bound)
        raise InfeasibleError(why_infeasible(spaces, max(search.left, FOR_REASONS * time_limit)))
    chosen, choice = search.incumbent, None
    if question is not None:
        tried = [
            *search.tried,
            *(row.evaluated for row in rows.values() if row.evaluated is not None and not row.outside),
        ]
        finish = search.pace.finish(search.incumbent.candidate)
        rest = Clock(Limits(time=max(clock.left - max(finish - search.slack, 0.0), 0.0)))
        try:
            choice = choose(spaces, search.incumbent, tried, search.bound, question, seed, rest)
            search.stop = Stop.TIME if choice is None else search.stop
        except KeyboardInterrupt:
            search.stop = Stop.INTERRUPT
        chosen = search.incumbent if choice is None else choice.chosen
    with nearly_done(), without_collector():
        own = spaces.of(chosen.candidate)
        plan = build_plan(own.model, own.cluster, job, chosen, search.bound)
        validate_plan(plan, own.model, own.cluster)
        plan = replace(shared_out(plan, model, own.split), yardstick=yardstick(model, cluster))
        found = Result(
            plan=plan,
            timeline=chosen.timeline,
            job=job,
            status=Status.OPTIMAL if search.bound == chosen.value else Status.FEASIBLE,
            stop=search.stop,
            value=chosen.value,
            bound=search.bound,
            wall=clock.wall,
            backend=backend,
            searched=_searched(spaces, search.opened, chosen),
            costs=asking.stated(sources(model, cluster, spaces.lowest.sizes, job)),
            baselines=rows,
            runners_up=search.ranking(),
            robust=choice,
            layouts=search.bounds_by_part(),
            late=spaces.late,
            whole=left_whole(plan, model, cluster, job),
        )
    if not (job.regular and price_regular):
        return found
    seconds = 0.0 if search.stop is Stop.INTERRUPT else min(clock.left, max(LONGER * clock.wall, LEAST))
    how: dict[str, Any] = {"gap": gap, "backend": backend, "workers": workers, "seed": seed}
    return replace(found, irregular=_irregular(model, cluster, job, found.value, time_limit=seconds, **how))


def _searched(spaces: Spaces, opened: int, chosen: EvaluatedPlan) -> Searched:
    """What was searched, and the chosen plan beside it if no listed one has its stages and devices."""
    found, chain = searched(spaces, opened), chosen.candidate.chain
    if isinstance(chain.split, Mix) or lists(spaces.of(chosen.candidate), chain.groups):
        return found
    return found.with_answer(chain.stages, chain.replicas)


def _check_beside(beside: Sequence[str]) -> None:
    """Refuse names that no heuristic has."""
    if isinstance(beside, str) or not all(isinstance(name, str) for name in beside):
        raise InputError(
            f"beside lists names of heuristics, not {shown(beside)}; write them like ('alpa', 'pipedream')"
        )
    complaints = [*unknown(beside)]
    if complaints:
        raise InputError("; ".join(complaints))


def _not_open(spaces: Spaces, waiting: Iterable[Node]) -> int | None:
    """A lower bound on the plans that no open node has: those of ways that are not known yet, and of waiting nodes."""
    bounds = [node.bound for node in waiting]
    return min([*bounds, *([] if spaces.unopened is None else [spaces.unopened])], default=None)


def _irregular(model: Model, cluster: Cluster, job: Job, value: int, *, time_limit: float, **how: Any) -> Irregular:
    """What there is without the wish for regular plans, of which one takes ``value`` nanoseconds."""
    free = replace(job, regular=False, equal_replicas=False)
    try:
        found = solve(model, cluster, job=free, time_limit=time_limit, **how) if time_limit > 0 else None
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
