"""Several levels of ZeRO: the best plan of each level, one level after the other, under one bound."""

from collections.abc import Callable
from dataclasses import replace

from pipeplan.core.errors import InfeasibleError, UndecidedError
from pipeplan.core.job import SHARDED, Job
from pipeplan.search.branch_and_bound import OnProgress
from pipeplan.search.result import Result
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Status, Stop


def best_level(
    solve: Callable[[Job, float, OnProgress], Result], job: Job, clock: Clock, on_progress: OnProgress
) -> Result:
    """Return the best plan over the levels of the job, with a bound on all of them.

    Levels that allow only plans of one stage are quick, so they come first; the others share the time that is left.

    Parameters
    ----------
    solve : callable
        ``solve(job, seconds, on_progress)`` answers for one level.

    Raises
    ------
    InfeasibleError
        If no plan of any level fits; the text is that of the last level.
    UndecidedError
        If no level has a plan, and it is not proved of all that none fits.
    InputError
        If some level cannot be planned for this model and job.
    """
    order = sorted(job.zero, key=lambda level: (level < SHARDED, level))
    results: list[Result] = []
    bounds: list[int] = []
    misfits: list[InfeasibleError] = []
    undecided: UndecidedError | None = None

    def report(value: int | None, bound: int, left: int) -> None:
        values = [result.value for result in results] + ([] if value is None else [value])
        last = len(bounds) + len(misfits) == len(order) - 1
        on_progress(min(values, default=None), min([*bounds, bound]) if last else 0, left)

    for number, level in enumerate(order):
        try:
            results.append(solve(replace(job, zero=(level,)), clock.left / (len(order) - number), report))
            bounds.append(results[-1].bound)
        except InfeasibleError as error:
            misfits.append(error)
        except UndecidedError as error:
            undecided = error
            bounds.append(error.bound)
        if results and results[-1].stop is Stop.INTERRUPT:
            bounds += [0] * (len(order) - number - 1)
            break
    if not results:
        raise undecided or misfits[-1]
    best, bound = min(results, key=lambda result: result.value), min(bounds)
    lowest = min(results, key=lambda result: result.plan.zero)
    proved = bound == best.value
    ends = [each.stop for each in results if each.stop not in (Stop.OPTIMALITY, Stop.GAP)]
    return replace(
        best,
        plan=replace(best.plan, bound=bound),
        job=job,
        status=Status.OPTIMAL if proved else Status.FEASIBLE,
        stop=Stop.OPTIMALITY if proved else ends[0] if ends else best.stop,
        bound=bound,
        wall=clock.wall,
        baselines={
            name: next((each.baselines[name] for each in results if not each.baselines[name].outside), row)
            for name, row in lowest.baselines.items()
        },
        searched=lowest.searched.at_levels(job.zero),
        layouts=lowest.layouts,
    )
