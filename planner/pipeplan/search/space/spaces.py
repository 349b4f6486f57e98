"""`Spaces`: one `Space` for each level of ZeRO of a job, and for each split over teams, searched together."""

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain

from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.job import SHARDED, WHOLLY_SHARDED, Job, Objective
from pipeplan.core.model import Model
from pipeplan.core.operators import Mix, Splitting
from pipeplan.core.words import MeshSplit
from pipeplan.costs.chain import Boundaries
from pipeplan.costs.teams import TeamQuestion, team_questions
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

    Teams of several devices have spaces of their own for each split that is worth searching, and for each mix of sizes
    at levels 0 and 1: there a device is a team (`pipeplan.costs.teams`).

    Attributes
    ----------
    job : Job
    questions : tuple of TeamQuestion
        The questions with teams, if they are known already: to find the splits worth searching takes time.
    teams : dict of Splitting to Spaces
        The spaces of each split and mix; they come after the others.

    Raises
    ------
    InputError
        If the job contradicts itself, the model or the cluster; for levels that it names, also if they do.
    """

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        job: Job,
        split: Splitting | None = None,
        questions: tuple[TeamQuestion, ...] | None = None,
    ) -> None:
        self.model, self.cluster, self.job, self.split = model, cluster, job, split
        self._spaces: dict[int, Space] = {}
        self.teams: dict[Splitting, Spaces] = {}
        if not job.teams or 1 in job.teams:
            self._open_levels()
        if questions is None:
            questions = tuple(team_questions(model, cluster, job))
        self.questions = questions
        for own in questions:
            # A mix may have no device where a layer is pinned to, or shared weights lie.
            with suppress(InputError) if isinstance(own.split, Mix) else nullcontext():
                self.teams[own.split] = Spaces(own.model, own.cluster, own.job, own.split)

    def _open_levels(self) -> None:
        job, named = self.job, self.job.zero or (0,)
        if min(named) >= SHARDED and ANY in job.schedules:
            raise InputError(
                f"level {min(named)} of ZeRO (zero) runs the orders of families, not schedules {ANY!r}; name some of "
                "these, or ask for level 1"
            )
        for level in named:
            self._spaces[level] = self._space(level)
        for level in () if job.zero else _worthwhile(self.lowest, self._highest):
            with suppress(InputError):
                self._spaces[level] = self._space(level)

    @property
    def _highest(self) -> int:
        return SHARDED - 1 if isinstance(self.split, Mix | MeshSplit) else WHOLLY_SHARDED

    def _space(self, level: int) -> Space:
        return Space(self.model, self.cluster, self._at(level), self.split)

    def _at(self, level: int) -> Job:
        """The job at one level. Beside lower levels, levels 2 and 3 leave out stages of one device: all are alike."""
        job, lowest = self.job, min(self.job.zero, default=0)
        widths = job.replicas or range(1, len(self.cluster.devices) + 1)
        several = tuple(r for r in widths if r > 1) if level >= SHARDED > lowest else ()
        return replace(job, zero=(level,), replicas=several or job.replicas)

    def __iter__(self) -> Iterator[Space]:
        return chain(self._spaces.values(), *self.teams.values())

    @property
    def levels(self) -> tuple[int, ...]:
        """The levels, ascending; if all plans have teams of several devices, those of the first split."""
        return tuple(self._spaces) or next(iter(self.teams.values())).levels

    @property
    def lowest(self) -> Space:
        """The first space, of the lowest level: of all that depends neither on levels nor on teams, it will do."""
        return next(iter(self))

    def __getitem__(self, level: int) -> Space:
        return self._spaces[level]

    def __contains__(self, level: int) -> bool:
        return level in self._spaces

    @cached_property
    def unsharded(self) -> tuple[Space, ...]:
        """The spaces of levels 0 and 1, at which heuristics are tried; all of them if there are none."""
        own = tuple(self._spaces.values()) or next(iter(self.teams.values())).unsharded
        return tuple(space for space in own if space.job.level < SHARDED) or own

    def outside(self, evaluated: EvaluatedPlan) -> str | None:
        """Message why a plan lies outside all spaces or does not fit; None if it is a valid answer."""
        return self._teamless(evaluated.candidate) or self.of(evaluated.candidate).outside(evaluated)

    def unasked(self, candidate: Candidate, boundaries: Boundaries) -> str | None:
        """Message why a plan lies outside all spaces, without regard to memory; None if it lies in one."""
        return self._teamless(candidate) or self.of(candidate).unasked(candidate, boundaries)

    def _teamless(self, candidate: Candidate) -> str | None:
        """Message if a plan has single devices, such as one of a level that is not searched, and all have teams."""
        if self._spaces or candidate.chain.split in self.teams:
            return None
        return f"it has no teams, asked for are teams of {', '.join(map(str, self.job.teams))}"

    def of(self, candidate: Candidate) -> Space:
        """The space of a candidate's split and level; without such a level, or without replicas, the lowest."""
        split = candidate.chain.split
        if split in self.teams:
            return self.teams[split].of(candidate)
        return self._spaces.get(candidate.chain.zero if max(candidate.replicas) > 1 else -1, self.lowest)

    def cluster_of(self, candidate: Candidate) -> Cluster:
        """The cluster of a candidate's devices, which are teams where it has a split."""
        return self.of(candidate).cluster

    def find(self, split: Splitting | None, level: int) -> Space | None:
        """The space of a split and a level; None if it is not searched."""
        own = self.teams.get(split) if split is not None else self
        return None if own is None else own._spaces.get(level)


def _worthwhile(space: Space, highest: int) -> tuple[int, ...]:
    """The levels at which plans may share out something that they do not share out in this space, of level 0."""
    job = space.job
    most = min(len(space.cluster.devices), job.batch // min(space.sizes))
    if most == 1 or set(job.replicas) == {1} or job.objective is Objective.BOTTLENECK:
        return ()
    return tuple(range(1, highest + 1))
