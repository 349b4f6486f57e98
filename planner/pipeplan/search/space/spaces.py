"""`Spaces`: one `Space` for each level of ZeRO of a job, searched together."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.job import SHARDED, WHOLLY_SHARDED, Job, Objective
from pipeplan.core.model import Model
from pipeplan.costs.chain import Boundaries
from pipeplan.search.evaluate import EvaluatedPlan
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.space import ANY, Space


class Spaces:
    """The spaces of a job's levels of ZeRO, the lowest level first.

    A job that names no level has those that can be planned for it and that share out something:

    ====== ================================================ ================================================
    level  shares out, besides what lower levels do         left out
    ====== ================================================ ================================================
    0      nothing                                          never
    1      the update, and the optimiser's state            for the bottleneck
    2      gradients                                        where it cannot be planned (`Job`, `Space`)
    3      parameters                                       where it cannot be planned
    ====== ================================================ ================================================

    Without replicas all levels are alike, so only level 0 is left.

    Attributes
    ----------
    job : Job

    Raises
    ------
    InputError
        If the job contradicts itself, the model or the cluster; for levels that it names, also if they do.
    """

    def __init__(self, model: Model, cluster: Cluster, job: Job) -> None:
        self.model, self.cluster, self.job = model, cluster, job
        named = job.zero or (0,)
        if min(named) >= SHARDED and ANY in job.schedules:
            raise InputError(
                f"level {min(named)} of ZeRO (zero) runs the orders of families, not schedules {ANY!r}; name some of "
                "these, or ask for level 1"
            )
        self._spaces = {level: Space(model, cluster, self._at(level)) for level in named}
        for level in () if job.zero else _worthwhile(self.lowest):
            with suppress(InputError):
                self._spaces[level] = Space(model, cluster, self._at(level))

    def _at(self, level: int) -> Job:
        """The job at one level. Beside lower levels, levels 2 and 3 leave out stages of one device: all are alike."""
        job, lowest = self.job, min(self.job.zero, default=0)
        widths = job.replicas or range(1, len(self.cluster.devices) + 1)
        several = tuple(r for r in widths if r > 1) if level >= SHARDED > lowest else ()
        return replace(job, zero=(level,), replicas=several or job.replicas)

    def __iter__(self) -> Iterator[Space]:
        return iter(self._spaces.values())

    @property
    def levels(self) -> tuple[int, ...]:
        """The levels, ascending."""
        return tuple(self._spaces)

    @property
    def lowest(self) -> Space:
        """The space of the lowest level: of all that does not depend on levels, it is as good as any other."""
        return self[self.levels[0]]

    def __getitem__(self, level: int) -> Space:
        return self._spaces[level]

    def __contains__(self, level: int) -> bool:
        return level in self._spaces

    @cached_property
    def unsharded(self) -> tuple[Space, ...]:
        """The spaces of levels 0 and 1, at which heuristics are tried; all of them if there are none."""
        return tuple(space for space in self if space.job.level < SHARDED) or tuple(self)

    def outside(self, evaluated: EvaluatedPlan) -> str | None:
        """Message why a plan lies outside all spaces or does not fit; None if it is a valid answer."""
        return self.of(evaluated.candidate).outside(evaluated)

    def unasked(self, candidate: Candidate, boundaries: Boundaries) -> str | None:
        """Message why a plan lies outside all spaces, without regard to memory; None if it lies in one."""
        return self.of(candidate).unasked(candidate, boundaries)

    def of(self, candidate: Candidate) -> Space:
        """The space of a candidate's level; without one, or without replicas, the lowest."""
        return self._spaces.get(candidate.chain.zero if max(candidate.replicas) > 1 else -1, self.lowest)


def _worthwhile(space: Space) -> tuple[int, ...]:
    """The levels at which plans may share out something that they do not share out in this space, of level 0."""
    job = space.job
    most = min(len(space.cluster.devices), job.batch // min(space.sizes))
    if most == 1 or set(job.replicas) == {1} or job.objective is Objective.BOTTLENECK:
        return ()
    return tuple(range(1, WHOLLY_SHARDED + 1))
