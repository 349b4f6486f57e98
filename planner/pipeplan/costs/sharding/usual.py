"""Sizes of teams that are searched where a job names none.

::

    no sizes named ──▶ 1, 2, 4, 8, of which some node has room for the team ──▶ teams beside single devices
                  └──▶ no operators, the bottleneck, …                      ──▶ single devices, and `why_alone`
"""

from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job, Order
from pipeplan.core.model import Model
from pipeplan.costs.sharding.places import places
from pipeplan.costs.sharding.question import homeless

USUAL = (2, 4, 8)
"""Sizes that are tried inside a node: Megatron's. More devices in a node do not take one away."""


def usual_teams(model: Model, cluster: Cluster, job: Job) -> tuple[int, ...]:
    """Return the sizes of teams that are searched for a job that names none; empty if there are single devices only."""
    fitting = () if _excluded(model, cluster, job) else _with_room(cluster, job)
    return (1, *fitting) if fitting else ()


def why_alone(model: Model, cluster: Cluster, job: Job) -> str:
    """Return in words why plans have single devices only; empty if there are teams."""
    if job.teams:
        return "" if max(job.teams) > 1 else "only teams of 1 are asked for"
    if len(cluster.devices) == 1:
        return "there is only one device"
    excluded = _excluded(model, cluster, job)
    if excluded or _with_room(cluster, job):
        return excluded
    if any(places(cluster, team) for team in USUAL):
        return "no node has room for 2 devices of one kind; --teams 2 searches teams over whole nodes"
    return "no node has room for 2 devices of one kind"


def _with_room(cluster: Cluster, job: Job) -> tuple[int, ...]:
    """The usual sizes for which a node has room, also of the kinds that layers are pinned to."""
    rows = [places(cluster, team) for team in USUAL]
    return tuple(
        team
        for team, row in zip(USUAL, rows, strict=True)
        if any(place.nodes == 1 for place in row.values()) and homeless(cluster, job, team) is None
    )


def _excluded(model: Model, cluster: Cluster, job: Job) -> str:
    """Why a job has no teams unless it names sizes; empty if it may have some."""
    for reason, holds in (
        ("the operators of its layers are not known: profile it again", not model.operators),
        ("teams are planned for the time of steps", not job.objective.simulated),
        ("divided layers have single devices", job.intra_layer),
        ("devices are taken in a given order; --teams 1,2 searches them", job.order is Order.GIVEN),
        ("a layer is pinned to one device", any(where not in cluster.kinds for _, where in job.pin)),
        ("devices with on-chip memory have none", any(kind.on_chip is not None for kind in cluster.kinds.values())),
    ):
        if holds:
            return reason
    return ""
