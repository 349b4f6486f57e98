"""Lower bounds on plans of teams whose ways to split layers are not priced yet; docs/bounds/teams.md has the proof."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

import numpy as np

from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.costs.chain import Array
from pipeplan.costs.sharding.least import COUNTED, IN_HALVES, least_steps, least_work
from pipeplan.costs.sharding.mixed import kind_name
from pipeplan.costs.sharding.question import AnyQuestion, Questions, every_way, team_questions
from pipeplan.costs.sharding.splits import MeshTeams
from pipeplan.costs.sharding.ways import Asked, Between, TeamWays
from pipeplan.search.space.lower_bounds import LowerBounds
from pipeplan.search.space.rounds import split_families
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import BeyondIntegersError
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.sharding import TooLargeError

Pools = Sequence[tuple[int, Mapping[str, int]]]
"""Devices, and the sizes of the teams of each kind that they may make up."""


class Unopened:
    """Lower bounds in nanoseconds on plans of teams, whatever way to split layers they have.

    Attributes
    ----------
    ways : dict of int to TeamWays
        Of teams of several devices, by size: what is priced for bounds is priced for these.
    splits : bool
        Whether some families split backwards.
    """

    def __init__(
        self, model: Model, cluster: Cluster, job: Job, clock: Clock | None = None, halved: bool = False
    ) -> None:
        self.ways = every_way(model, cluster, job, clock)
        self.splits = halved or bool(split_families(job))
        self.job, self.cluster, self._model, self._clock = job, cluster, model, clock
        self._of_team: dict[int, LeastSteps] = {}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the teams of several devices, in the order in which they are opened."""
        return tuple(self.ways)

    def asking(self, sizes: tuple[int, ...], mixed: bool) -> Questions:
        """Return what asks about teams of one of these sizes, or of all and of mixes, with what is priced here."""
        own = self.job if mixed else replace(self.job, teams=sizes, unlike_teams=False)

        def at(asked: Asked | None) -> Iterator[AnyQuestion]:
            if asked is None:
                return team_questions(self._model, self.cluster, own, self._clock, self.ways)
            job = replace(own, micro_batches=tuple(own.batch // size for size in sorted({size for _, size in asked})))
            among = {team: ways.among(asked) for team, ways in self.ways.items()}
            return team_questions(self._model, self.cluster, job, self._clock, among)

        return at

    def of_team(self, team: int, enough: int = UNLIMITED) -> int:
        """Return a lower bound on plans whose teams all have this size, and more than one device.

        It is raised until it is ``enough``, or cannot be raised. With 0 it is the least work, shared evenly, or what
        was found before: cheap, and weak.
        """
        return self._teams_of(team).raised(enough)

    def steps_of(self, team: int) -> "LeastSteps":
        """The bounds of teams of a size, by micro-batch size and what passes between layers."""
        return self._teams_of(team)

    @property
    def of_mixes(self) -> int:
        """Lower bound on plans whose teams may differ in size; single devices are among them if they are asked for.

        Then it is not raised, as the single devices' work is what bounds it.
        """
        return self._mixes.raised(0 if 1 in self.job.teams else UNLIMITED)

    def _between(self, team: int) -> list[Between]:
        """What passes between layers in ways along one axis; nothing if a strategy of meshes is asked for."""
        return [] if self.job.strategy else self.ways[team].between(self.job.sequence_parallel)

    def _teams_of(self, team: int) -> "LeastSteps":
        """Bounds of teams of one size, made once."""
        if team not in self._of_team:
            self._of_team[team] = self._new_teams_of(team)
        return self._of_team[team]

    def _new_teams_of(self, team: int) -> "LeastSteps":
        own = self.ways[team]
        units = Counter(device.kind.name for device in own.teams.as_devices.devices)
        every: list[Between | None] = [*self._between(team)]
        if not every or MeshTeams.of(own.teams, self.job.batch, self.job.mesh_axes):
            every.append(None)
        pools = [(many, {name: 1}) for name, many in units.items()]
        rows = [(kind.name, kind, own) for kind in own.teams.kinds]
        return LeastSteps(rows, (), self.job, every, pools, self._clock, self.splits)

    @cached_property
    def _mixes(self) -> "LeastSteps":
        """Bounds of teams of several sizes."""
        kinds = list({device.kind.name: device.kind for device in self.cluster.devices}.values())
        alone = kinds if 1 in self.job.teams else []
        rows = [(kind_name(kind.name, team), kind, own) for team, own in self.ways.items() for kind in own.teams.kinds]
        pools = []
        for name, many in Counter(device.kind.name for device in self.cluster.devices).items():
            teams = {kind_name(name, team): team for team, own in self.ways.items() if name in own.teams.places}
            pools.append((many, teams | ({name: 1} if alone else {})))
        every = dict.fromkeys(each for team in self.ways for each in self._between(team))
        return LeastSteps(rows, alone, self.job, [*every] or [None], pools, self._clock, self.splits)


class LeastSteps:
    """Lower bounds on plans of some teams, one for each micro-batch size and what passes between layers.

    At first a member has at least its part of the work (`least_work`). A bound that is not enough is raised to what the
    best strategies of each layer take (`least_steps`), which are found only then. All of it is shared evenly over all
    devices. Stages of unlike teams may have each layer on the teams that are best for it.

    Parameters
    ----------
    kinds : sequence of (str, DeviceKind, TeamWays)
        The kinds of teams: name, devices, ways.
    alone : sequence of DeviceKind
        The kinds of single devices beside them.
    job : Job
    every : sequence of Between or None
        What passes between layers in ways along one axis; None stands for meshes, whose bounds are not raised.
    pools : Pools
    clock : Clock or None
        The time in which bounds are raised.
    splits : bool
        Whether some families split backwards.
    """

    def __init__(
        self,
        kinds: Sequence[tuple[str, DeviceKind, TeamWays]],
        alone: Sequence[DeviceKind],
        job: Job,
        every: Sequence[Between | None],
        pools: Pools,
        clock: Clock | None,
        splits: bool,
    ) -> None:
        self._kinds, self._alone, self._job, self._pools, self._clock = kinds, alone, job, pools, clock
        self._teams = kinds[0][2].teams
        self._slices = self._teams.model.slices
        self._passes = (COUNTED, IN_HALVES) if splits else (COUNTED,)
        self._ways = (COUNTED, IN_HALVES[:2]) if splits else (COUNTED,)
        # of attention, that of the first slice
        self._share = 0.0 if splits and self._slices > 1 else 1 / self._slices**2
        weak = {size: self._weak(size) for size in self._teams.sizes}
        self._bounds = {(each, size): bound for size, bound in weak.items() for each in every}
        self._final: set[tuple[Between | None, int]] = {(None, size) for size in weak}

    def raised(self, enough: int) -> int:
        """Return the least bound, once it is ``enough`` or cannot be raised."""
        while True:
            least = min(self._bounds, key=self._bounds.__getitem__)
            if self._bounds[least] >= enough or least in self._final or not self._has_time():
                return self._bounds[least]
            self._raise(*least)

    def below(self, most: int) -> list[tuple[Between | None, int]]:
        """Return what passes between layers, and the micro-batch size, where the raised bound is below ``most``."""
        for each in [each for each, bound in self._bounds.items() if bound < most and each not in self._final]:
            if self._has_time():
                self._raise(*each)
        return [each for each, bound in self._bounds.items() if bound < most]

    def at(self, size: int) -> list[tuple[Between | None, int]]:
        """Return the same of one micro-batch size, whatever the bounds are."""
        return [each for each in self._bounds if each[1] == size]

    def learn(self, between: Between | None, size: int, bound: int) -> None:
        """Raise a bound to one that was found elsewhere."""
        self._bounds[between, size] = max(self._bounds[between, size], bound)

    def of(self, between: Between | None, size: int) -> int:
        """Return a bound on ways along one axis, those that split samples included, as far as it is known; or 0."""
        return min((self._bounds[each, size] for each in (between, None) if (each, size) in self._bounds), default=0)

    def _raise(self, between: Between | None, size: int) -> None:
        """Raise a bound once and for all."""
        assert between is not None, "these are final"
        self._final.add((between, size))
        with suppress(BeyondIntegersError, TooLargeError):  # then the first bound is all that is known
            known = self._bounds[between, size]
            self._bounds[between, size] = max(known, self._raised(between, size))

    def _has_time(self) -> bool:
        return self._clock is None or self._clock.left > 0

    def _raised(self, between: Between, size: int) -> int:
        """The bound of the best strategies of each layer."""
        steps, passes = self._steps(size, between, self._job.batch // size)
        return max(self._bound(size, steps, 0.0), self._bound(size, passes, self._share) if self._share else 0)

    def _weak(self, size: int) -> int:
        """The bound of what the parts of a layer take in any way."""
        way = self._bound(size, self._work(size, self._ways), self._share) if self._share else 0
        return max(self._bound(size, self._work(size, self._passes), 0.0), way)

    def _bound(self, size: int, work: Mapping[str, Array], share: float) -> int:
        """The bound of the least nanoseconds of a micro-batch by kind; ``share``: of a micro-batch's way."""
        work = {**work, **dict(self._of_devices(size))}
        pools = [(many, {name: team for name, team in kinds.items() if name in work}) for many, kinds in self._pools]
        return LowerBounds.of_work(work, self._job, size, share).of_teams([each for each in pools if each[1]])

    def _of_devices(self, size: int) -> Iterator[tuple[str, Array]]:
        """Nanoseconds of a micro-batch on single devices."""
        for kind in self._alone:
            costs = self._teams.costs(kind, size)
            yield kind.name, np.array([cost.forward + cost.backward for cost in costs], np.int64)

    def _work(self, size: int, passes: Sequence[tuple[str, ...]]) -> dict[str, Array]:
        """The least work of a micro-batch on teams in any way, by the lesser of these passes."""
        return {
            name: self._slices * np.minimum.reduce([least_work(ways.teams, kind, size, each) for each in passes])
            for name, kind, ways in self._kinds
        }

    def _steps(self, size: int, between: Between, count: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """The least time on teams of each of so many micro-batches, what is done once included, and of one without."""
        steps, passes = dict[str, Array](), dict[str, Array]()
        for name, kind, ways in self._kinds:
            if between in ways.between():
                every = list(dict.fromkeys((*self._passes, *self._ways)))
                least = least_steps(ways, between, kind, size, count * self._slices, every)
                rows = dict(zip(every, least, strict=True))
                steps[name] = np.minimum.reduce([rows[each][0] for each in self._passes]) // count
                passes[name] = self._slices * np.minimum.reduce([rows[each][1] for each in self._ways])
        return steps, passes
