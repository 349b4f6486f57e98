"""Levels of ZeRO: those at which a job's plans are searched, and the job at each."""

from pipeplan.core.changed import changed
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.job import SHARDED, WHOLLY_SHARDED, Job, Objective
from pipeplan.core.model import Model
from pipeplan.core.splits import Mix
from pipeplan.search.space.space import ANY, Space


def named_levels(job: Job) -> tuple[int, ...]:
    """Return the levels that a job names, or the lowest.

    Raises
    ------
    InputError
        If no schedule of the job runs at any of them.
    """
    named = job.zero or (0,)
    if min(named) >= SHARDED and ANY in job.schedules:
        raise InputError(
            f"level {min(named)} of ZeRO (zero) runs the orders of families, not schedules {ANY!r}; name some of "
            "these, or ask for level 1"
        )
    return named


def worthwhile(space: Space) -> tuple[int, ...]:
    """Return the levels at which plans may share out something that they do not share out in a space of level 0."""
    job, model = space.job, space.model
    most = min(len(space.cluster.devices), job.batch // min(space.sizes))
    if most == 1 or set(job.replicas) == {1} or job.objective is Objective.BOTTLENECK:
        return ()
    whole = model.slicing is None and model.folding is None and not isinstance(space.split, Mix) and not job.staleness
    return tuple(range(1, (WHOLLY_SHARDED if whole else SHARDED - 1) + 1))


def at_level(job: Job, level: int, model: Model, cluster: Cluster) -> Job:
    """Return the job at one level. Beside lower levels, 2 and 3 leave out stages of one device: all are alike.

    So does level 1 where devices have several stages, which are few shapes otherwise. From level 2 on replicas have
    equally many micro-batches, so their number divides the batch.
    """
    lowest = min(job.zero, default=0)
    widths = job.replicas or range(1, len(cluster.devices) + 1)
    alike = level >= SHARDED > lowest or (model.folding is not None and level > lowest)
    several = tuple(r for r in widths if r > 1) if alike else ()
    several = tuple(r for r in several if job.batch % r == 0) or several if level >= SHARDED else several
    return changed(job, zero=(level,), replicas=several or job.replicas)
