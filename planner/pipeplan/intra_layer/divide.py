"""The door: plans of whole layers first, then divided ones that beat them, and one bound over both."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from pipeplan.cluster import Cluster
from pipeplan.errors import InfeasibleError, UndecidedError
from pipeplan.intra_layer.judge import plan
from pipeplan.intra_layer.search import LineSearch
from pipeplan.intra_layer.space import asked, lines, require_streams
from pipeplan.job import Job
from pipeplan.model import Model
from pipeplan.result import Result
from pipeplan.scope import searched, with_divided_layers
from pipeplan.search.space import Space
from pipeplan.sources import sources
from pipeplan.validate import validate_plan
from pipeplan_formulations.common.branch_and_bound import OnProgress
from pipeplan_formulations.report import Limits, Status, Stop

WHOLE = 0.5
"""Part of the time that the search over whole layers may take."""


def divide(
    whole_layers: Callable[[Job, float], Result],
    model: Model,
    cluster: Cluster,
    job: Job,
    limits: Limits,
    watch: OnProgress,
) -> Result:
    """The better of the best plan of whole layers and the best one that divides layers.

    Parameters
    ----------
    whole_layers : callable
        ``whole_layers(job, seconds)`` solves without division.

    Raises
    ------
    InputError
        If the cluster's devices do not stream, or the job asks for what does not go with divided layers.
    InfeasibleError
        If no plan of either sort fits.
    """
    began = time.monotonic()
    require_streams(model, cluster, job)
    whole, why = None, ""
    floor: int | None = None
    ended = Stop.OPTIMALITY
    try:
        whole = whole_layers(replace(job, intra_layer=False), WHOLE * limits.time)
        floor, ended = whole.bound, whole.stop
    except InfeasibleError as reason:
        why = str(reason)
    except UndecidedError as reason:
        floor, ended = reason.bound, Stop(reason.stop)

    def tell(value: int | None, bound: int, left: int) -> None:
        watch(value, bound if floor is None else min(floor, bound), left)

    left = replace(limits, time=max(0.0, limits.time - (time.monotonic() - began)))
    known = None if whole is None else whole.value
    search = LineSearch(left, tell, value=known, model=model, asked=lambda line: asked(line, job))
    if not job.replicas or 1 in job.replicas:
        search.open_all(lines(model, cluster, job))
        if ended is not Stop.INTERRUPT:
            search.run()
    stops: list[Stop] = [search.stop] if search.stop in (Stop.TIME, Stop.INTERRUPT) else []
    stops += [ended] if ended not in (Stop.OPTIMALITY, Stop.GAP) else []
    return _result(whole, floor, search, model, cluster, job, time.monotonic() - began, stops, why)


def _result(
    whole: Result | None,
    floor: int | None,
    search: LineSearch,
    model: Model,
    cluster: Cluster,
    job: Job,
    wall: float,
    stops: Sequence[Stop],
    why: str,
) -> Result:
    bounds = [*([] if floor is None else [floor]), *([] if search.refuted else [search.bound])]
    if whole is None and search.incumbent is None:
        if stops or not search.refuted:
            raise UndecidedError(stops[0] if stops else Stop.EXHAUSTED, min(bounds, default=0))
        raise InfeasibleError(f"{why}\nNo line of devices that divides layers fits either.")
    value = search.value or 0
    bound = min([value, *bounds])
    reached = Stop.GAP if value - bound <= search.limits.gap * value else Stop.EXHAUSTED
    stop = Stop.OPTIMALITY if bound == value else stops[0] if stops else reached
    status = Status.OPTIMAL if bound == value else Status.FEASIBLE
    space = Space(model, cluster, replace(job, intra_layer=False))
    reach = whole.searched if whole else searched(space)
    runners_up = whole.runners_up if whole else ()
    if search.incumbent is None:
        assert whole is not None
        best, timeline = replace(whole.plan, bound=bound), whole.timeline
    else:
        best, timeline = plan(model, job, search.incumbent, bound), search.incumbent.timeline
        runners_up = ((search.incumbent.line.label, value), *runners_up)
        validate_plan(best, model, cluster)
    return Result(
        plan=best,
        timeline=timeline,
        job=job,
        status=status,
        stop=stop,
        value=value,
        bound=bound,
        wall=wall,
        backend=whole.backend if whole else "exact",
        searched=with_divided_layers(reach, search.solved),
        costs=sources(model, cluster, space.sizes),
        baselines=whole.baselines if whole else {},
        runners_up=runners_up,
    )
