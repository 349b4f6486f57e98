"""`result`: the best plan of a search, or the one chosen where times vary, and all that is known about it."""

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from pipeplan.core.collector import without_collector
from pipeplan.core.job import Job, Objective
from pipeplan.core.perturbation import Robust
from pipeplan.core.plan import Plan
from pipeplan.core.searched import Searched
from pipeplan.core.splits import Mix
from pipeplan.costs.sharding.left_whole import left_whole
from pipeplan.costs.sources import sources, splitting
from pipeplan.search.branch_and_bound import SLACK
from pipeplan.search.evaluate import EvaluatedPlan
from pipeplan.search.result import Result
from pipeplan.search.scope import lists, searched
from pipeplan.search.space.spaces import Spaces
from pipeplan.solve.solving import Solving
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Status, Stop
from pipeplan_formulations.common.signals import nearly_done

if TYPE_CHECKING:  # few jobs need these, and functions below import them
    from pipeplan.search.front_first import FrontFirst
    from pipeplan.solve.robust.compared import Choice


def choice_of(solving: Solving, question: Robust) -> "Choice | None":
    """Choose among all plans found where times vary; None if the time was over before the first was sampled."""
    from pipeplan.solve.robust.choice import choose

    search, best, tried = solving.search, solving.incumbent, solving.found
    building = max(search.pace.finish(best.candidate) - SLACK, 0.0)
    rest = Clock(Limits(time=max(solving.clock.left - building, 0.0)))
    choice = None
    try:
        choice = choose(solving.spaces, best, tried, search.bound, question, solving.means.limits.seed, rest)
        search.stop = Stop.TIME if choice is None else search.stop
    except KeyboardInterrupt:
        search.stop = Stop.INTERRUPT
    return choice


@nearly_done()
@without_collector()
def result(
    solving: Solving, choice: "Choice | None" = None, unequal_slices: bool = False, budget: Fraction | None = None
) -> Result:
    """Build the plan that was chosen, check it, and return it with all that is known about it."""
    chosen, search, spaces = solving.incumbent if choice is None else choice.chosen, solving.search, solving.spaces
    model, cluster, job = solving.asked.model, solving.asked.cluster, solving.asked.job
    plan = solving.plan(chosen)
    return Result(
        plan=plan,
        job=job,
        status=Status.OPTIMAL if search.bound == chosen.value else Status.FEASIBLE,
        stop=search.stop,
        value=chosen.value,
        bound=search.bound,
        wall=solving.clock.wall,
        backend=solving.means.backend,
        searched=_searched(spaces, search.opened, chosen, search.cutoff),
        costs=replace(
            solving.asked.stated(sources(model, cluster, spaces.lowest.sizes, job)),
            teams=splitting(cluster) if spaces.teams else "",
        ),
        baselines=solving.rows,
        runners_up=search.ranking(),
        robust=choice,
        layouts=search.bounds_by_part(),
        late=solving.late,
        whole=left_whole(plan, model, cluster, job),
        recut=_recut(solving, chosen) if unequal_slices else None,
        front_first=None if budget is None else _front_first(solving, budget),
        delayed=_with_delay(spaces, job),
    )


def _recut(solving: Solving, chosen: EvaluatedPlan) -> Plan | None:
    """The plan with slices of unlike lengths, if it is faster."""
    from pipeplan.search.recut import recut

    found = recut(solving.asked.model, solving.spaces.of(chosen.candidate), chosen)
    return None if found is None else solving.plan(found[1], found[0])


def _front_first(solving: Solving, budget: Fraction) -> "FrontFirst":
    """The best plan found whose sums run front layers first, with a share of gradients that may be lost."""
    from pipeplan.search.front_first import FrontFirst, front_first

    asked = solving.asked
    found = front_first(asked.model, asked.cluster, asked.job, solving.found, budget)
    if found is None:
        return FrontFirst(None)
    return FrontFirst(solving.plan(found.evaluated, found.space), found.ideal)


def _with_delay(spaces: Spaces, job: Job) -> int | None:
    """A lower bound in nanoseconds on the period with one step of delay; None if it is no choice."""
    possible = job.objective is Objective.PERIOD and not job.staleness and not job.intra_layer
    return spaces.least if possible and len(spaces.cluster.devices) > 1 else None


def _searched(spaces: Spaces, opened: int, chosen: EvaluatedPlan, cutoff: int | None) -> Searched:
    """What was searched, and the chosen plan beside it if no listed one has its stages and devices."""
    found, candidate = searched(spaces, opened, cutoff), chosen.candidate
    listed = isinstance(candidate.chain.split, Mix) or candidate.laid is not None
    if listed or lists(spaces.of(candidate), candidate.chain.groups):
        return found
    return found.with_answer(candidate.chain.stages, candidate.chain.replicas)
