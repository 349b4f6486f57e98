"""Lower bounds on plans of teams whose ways to split layers are not known yet, from the least work of any way."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.costs.chain import Array
from pipeplan.costs.sharding.least import IN_HALVES, least_work
from pipeplan.costs.sharding.mixed import kind_name
from pipeplan.costs.sharding.places import team_cluster
from pipeplan.costs.sharding.question import every_team
from pipeplan.costs.sharding.teams import Teams
from pipeplan.schedules import SPLIT
from pipeplan.search.space.lower_bounds import LowerBounds


class Unopened:
    """Lower bounds in nanoseconds on plans of teams, whatever way to split layers they have.

    A member has at least its part of the work (`least_work`), and all work is shared evenly over all devices. Stages of
    unlike teams may have each layer on the teams that are best for it.
    """

    def __init__(self, model: Model, cluster: Cluster, job: Job) -> None:
        self._cluster, self._job = cluster, job
        self._teams = every_team(model, cluster, job)
        self._known: dict[int, int] = {}
        self._splits = model.slicing is not None and bool(set(job.schedules) & set(SPLIT))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the teams of several devices, in the order in which they are opened."""
        return tuple(self._teams)

    def of_team(self, team: int) -> int:
        """Lower bound on plans whose teams all have this size, and more than one device."""
        if team not in self._known:
            teams = self._teams[team]
            units = Counter(device.kind.name for device in team_cluster(self._cluster, team).devices)
            pools = [(many, {name: 1}) for name, many in units.items()]
            work = {size: dict(self._work(teams, size)) for size in teams.sizes}
            self._known[team] = self._least(work, pools)
        return self._known[team]

    @cached_property
    def of_mixes(self) -> int:
        """Lower bound on plans whose teams may differ in size; single devices are among them if they are asked for."""
        first = next(iter(self._teams.values()))
        alone = 1 in self._job.teams
        work: dict[int, dict[str, Array]] = {}
        for size in first.sizes:
            work[size] = {
                kind_name(name, team): own
                for team, teams in self._teams.items()
                for name, own in self._work(teams, size)
            }
            for kind in _kinds(self._cluster) if alone else ():
                costs = first.costs(kind, size)
                work[size][kind.name] = np.array([cost.forward + cost.backward for cost in costs], np.int64)
        devices = Counter(device.kind.name for device in self._cluster.devices)
        pools = []
        for name, many in devices.items():
            teams = {kind_name(name, team): team for team, own in self._teams.items() if name in own.places}
            pools.append((many, teams | ({name: 1} if alone else {})))
        return self._least(work, [(many, kinds) for many, kinds in pools if kinds])

    def _work(self, teams: Teams, size: int) -> Iterator[tuple[str, Array]]:
        for kind in _kinds(self._cluster):
            if kind.name in teams.places:
                whole = least_work(teams, kind, size)
                least = np.minimum(whole, least_work(teams, kind, size, IN_HALVES)) if self._splits else whole
                yield kind.name, teams.model.slices * least

    def _least(self, work: Mapping[int, Mapping[str, Array]], pools: Sequence[tuple[int, Mapping[str, int]]]) -> int:
        slices = next(iter(self._teams.values())).model.slices
        first = 0.0 if self._splits else 1 / slices**2  # of attention, the least share
        bounds = (LowerBounds.of_work(own, self._job, size, first).of_teams(pools) for size, own in work.items())
        return min(bounds, default=0)


def _kinds(cluster: Cluster) -> list[DeviceKind]:
    return list({device.kind.name: device.kind for device in cluster.devices}.values())
