"""The door: plans of whole layers first, then divided ones that beat them, and one bound over both."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InfeasibleError, UndecidedError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.validate import validate_plan
from pipeplan.costs.sources import sources
from pipeplan.search.intra_layer.judge import plan
from pipeplan.search.intra_layer.search import LineSearch, Watch
from pipeplan.search.intra_layer.space import asked, lines, require_streams
from pipeplan.search.result import Result
from pipeplan.search.scope import searched, with_divided_layers
from pipeplan.search.space.space import Space
from pipeplan_formulations.common.report import Limits, Status, Stop

WHOLE = 0.5
"""Part of the time that the search over whole layers may take."""


def divide(
    whole_layers: Callable[[Job, float], Result], model: Model, cluster: Cluster, job: Job, limits: Limits, watch: Watch
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
    search = LineSearch(model, left, tell, lambda line: asked(line, job), beat=None if whole is None else whole.value)
    wanted = not job.replicas or 1 in job.replicas
    if wanted and ended is not Stop.INTERRUPT:
        search.run(lines(model, cluster, job))
    stops = [stop for stop in (search.stop, ended) if stop not in (Stop.OPTIMALITY, Stop.GAP)]
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
    if whole is None and search.best is None:
        if stops:
            known = [bound for bound in (floor, search.bound) if bound is not None]
            raise UndecidedError(stops[0], min(known, default=0))
        raise InfeasibleError(f"{why}\nNo line of devices that divides layers fits either.")
    value = search.beat if search.beat is not None else 0
    bounds = [bound for bound in (floor, search.bound) if bound is not None]
    bound = min([value, *bounds])
    reached = Stop.GAP if value - bound <= search.limits.gap * value else Stop.EXHAUSTED
    stop = Stop.OPTIMALITY if bound == value else stops[0] if stops else reached
    status = Status.OPTIMAL if bound == value else Status.FEASIBLE
    space = Space(model, cluster, replace(job, intra_layer=False))
    reach = whole.searched if whole else searched(space)
    runners_up = whole.runners_up if whole else ()
    if search.best is None:
        assert whole is not None
        best, timeline = replace(whole.plan, bound=bound), whole.timeline
    else:
        best, timeline = plan(model, job, search.best, bound), search.best.timeline
        runners_up = ((search.best.line.label, value), *runners_up)
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
        searched=with_divided_layers(reach, search.opened),
        costs=sources(model, cluster, space.sizes),
        baselines=whole.baselines if whole else {},
        runners_up=runners_up,
    )
