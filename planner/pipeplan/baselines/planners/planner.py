"""Interface of baseline planners, which choose replicas and devices as well as boundaries.

::

    arrangement   boundaries (0, 5, 9, 12), devices ((0, 1, 2), (3,), (4,))

    layers        0 1 2 3 4 │ 5 6 7 8 │ 9 10 11
    devices       d0 d1 d2  │   d3    │    d4
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from pipeplan.core.cluster import Cluster
from pipeplan.core.model import Model
from pipeplan.costs.chain import Boundaries


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Boundaries and devices of the stages.

    Micro-batches, schedule and recomputation (the least that fits) are chosen as for every plan.

    Attributes
    ----------
    boundaries : tuple of int
        ``(0, …, n)``; no stage is empty.
    devices : tuple of tuple of int
        For every stage the indices of its devices in the cluster, one per replica.
    value : float or None
        Nanoseconds by the planner's own objective, if it is one of those that choose splits by it.
    """

    boundaries: Boundaries
    devices: tuple[tuple[int, ...], ...]
    value: float | None = field(default=None, compare=False)

    @property
    def replicas(self) -> tuple[int, ...]:
        """Number of devices of every stage."""
        return tuple(len(stage) for stage in self.devices)


@dataclass(frozen=True, slots=True)
class BaselinePlanner:
    """A baseline that chooses replicas and devices as well as boundaries.

    Attributes
    ----------
    name : str
    summary : str
        One line for tables.
    source : str
        The project or paper whose behaviour it reproduces, and how closely.
    families : tuple of str
        Schedule families that the baseline runs; empty is every family that suits the cluster.
    arrange : callable
        ``arrange(model, cluster, job, micro_batch)`` returns the candidate arrangements for micro-batches of
        ``micro_batch`` samples; the best of them, evaluated like every other plan, is the baseline's plan. Raises
        `NotApplicable`.
    effort : callable
        ``effort(model, cluster)`` returns the approximate number of values that ``arrange`` evaluates.
    overlaps : bool
        Its gradients are summed while the last backward runs, if the job allows that.
    level : int or None
        Its level of ZeRO; None for the job's.
    splits : bool
        Whether it chooses among the splits over teams (and levels 0 and 1 of ZeRO) by the least ``Arrangement.value``.
        Then ``arrange`` is called for each, with the model and the cluster as its teams see them, and with the least
        value so far as a fifth argument: arrangements with as much or more may be left out.
    """

    name: str
    summary: str
    source: str
    families: tuple[str, ...]
    arrange: Callable[..., tuple[Arrangement, ...]]
    effort: Callable[[Model, Cluster], int] = lambda model, cluster: 30 * len(model.layers) * len(cluster.devices)
    overlaps: bool = True
    level: int | None = None
    splits: bool = False


def unlike(arrangement: Arrangement, cluster: Cluster) -> str | None:
    """Describe why an arrangement is invalid: replicas of unlike kinds in one stage. None if it is valid."""
    for s, stage in enumerate(arrangement.devices):
        kinds = dict.fromkeys(cluster.devices[device].kind.name for device in stage)
        if len(kinds) > 1:
            return f"stage {s} lies on devices of unlike kinds ({', '.join(kinds)}); replicas are of one kind"
    return None
