"""Proposals of published heuristics for a job: devices and boundaries, for every micro-batch size.

They do not depend on the job's schedules, so `compare` makes them once for all schedule families.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from pipeplan.baselines.partitioners import PARTITIONERS, NotApplicable
from pipeplan.baselines.planners import PLANNERS, unlike
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.costs.chain import Boundaries, Chain
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces

SECONDS_PER_STEP = 1e-8
"""Approximate seconds per unit of a heuristic's `effort`."""
KEPT = 2**21
"""Most stages x layers of the chains that are kept."""

Rows = tuple[tuple[int, ...], ...]
"""For every stage the indices of its devices."""


@dataclass(frozen=True)
class Proposal:
    """Devices, micro-batch size and boundaries."""

    rows: Rows
    size: int
    boundaries: Boundaries


@dataclass
class Proposals:
    """What heuristics propose for a model, a cluster and a job, whatever its schedules; kept for the next space."""

    _asked: tuple[Model, Cluster, Job] | None = None
    _made: dict[tuple[str, int], tuple[Proposal | str, ...]] = field(default_factory=dict)
    _chains: dict[tuple[Rows, int, int], Chain] = field(default_factory=dict)
    _beyond: dict[int, Space | None] = field(default_factory=dict)

    def begin(self, spaces: Spaces) -> None:
        """Forget what was made for another model, cluster or job."""
        any_order = ("any",) if "any" in spaces.job.schedules else ()  # which hides less of the reductions
        asked = spaces.model, spaces.cluster, replace(spaces.job, schedules=any_order)
        known = self._asked
        if known is None or known[0] is not asked[0] or known[1] is not asked[1] or known[2] != asked[2]:
            self._asked = asked
            self._made.clear()
            self._chains.clear()
        self._beyond.clear()

    def seconds(self, space: Space, name: str, size: int) -> float:
        """Approximate seconds in which the heuristic's proposals at a micro-batch size are made."""
        if (name, size) in self._made:
            return 0.0
        if name in PLANNERS:
            return SECONDS_PER_STEP * PLANNERS[name].effort(space.model, space.cluster)
        return SECONDS_PER_STEP * PARTITIONERS[name].effort(len(space.model.layers), space.deepest)

    def of(self, space: Space, name: str, size: int) -> tuple[Proposal | str, ...]:
        """The heuristic's proposals at a micro-batch size, and the reasons where it has none."""
        if (name, size) not in self._made:
            make = self._arranged if name in PLANNERS else self._cut
            try:
                self._made[name, size] = make(space, name, size)
            except NotApplicable as reason:
                self._made[name, size] = (str(reason),)
        return self._made[name, size]

    def candidates(
        self, spaces: Spaces, rows: Rows, size: int, free: bool, overlaps: bool = True, level: int | None = None
    ) -> list[Candidate]:
        """The candidates on these devices, one per level of ZeRO and family.

        Parameters
        ----------
        overlaps : bool
            Whether reductions may overlap.
        level : int, optional
            The only level, in `spaces` or not. Else those of `Spaces.unsharded` count.
        """
        found: list[Candidate] = []
        for space in spaces.unsharded if level is None else self._at(spaces, level):
            chain = self._chain(space, rows, size)
            if chain.overlaps and not overlaps:
                chain = replace(chain, hides=np.zeros_like(chain.hides))
            found += space.candidates_of(chain, free)
        return found

    def _at(self, spaces: Spaces, level: int) -> Iterator[Space]:
        """Yield the space of a level, which may be none of those searched; nothing if there is none.

        Where all plans have teams, proposals are of these, and there is none either: a level is one of single devices.
        """
        if level in spaces:
            yield spaces[level]
        if level in spaces or spaces.lowest.split is not None:
            return
        if level not in self._beyond:
            self._beyond[level] = None
            with suppress(InputError):
                job = replace(spaces.job, zero=(level,), depths=(), intra_layer=False)
                self._beyond[level] = Space(spaces.model, spaces.cluster, job)
        found = self._beyond[level]
        if found is not None:
            yield found

    def _cut(self, space: Space, name: str, size: int) -> tuple[Proposal, ...]:
        """A partitioner's boundaries; devices without layers are left out."""
        rows = tuple((group[0].index,) for group in space.single_device_groups)
        if not rows:
            raise NotApplicable("the job does not allow one device per stage")
        unable = space.unable((1,) * len(rows), space.job.batch // size)
        if unable is not None:
            raise NotApplicable(unable)
        boundaries = PARTITIONERS[name].balance(self._chain(space, rows, size), space.job.batch // size)
        kept = [s for s, (a, b) in enumerate(pairwise(boundaries)) if a < b]
        return (Proposal(tuple(rows[s] for s in kept), size, (0, *(boundaries[s + 1] for s in kept))),)

    def _arranged(self, space: Space, name: str, size: int) -> tuple[Proposal | str, ...]:
        """A baseline planner's arrangements."""
        found: list[Proposal | str] = []
        count = space.job.batch // size
        for arrangement in PLANNERS[name].arrange(space.model, space.cluster, space.job, size):
            mixed, widest = unlike(arrangement, space.cluster), max(arrangement.replicas)
            if mixed is not None:
                found.append(mixed)
            elif widest > count:  # never searched: some replicas would be idle
                found.append(
                    f"{widest} replicas of a stage share {count} micro-batches; smaller micro-batches keep all busy"
                )
            elif (unable := space.unable(arrangement.replicas, count)) is not None:
                found.append(unable)
            else:
                found.append(Proposal(arrangement.devices, size, arrangement.boundaries))
        return tuple(found)

    def _chain(self, space: Space, rows: Rows, size: int) -> Chain:
        """The layers' costs on these devices."""
        key = rows, size, space.job.level
        if key not in self._chains:
            if (1 + len(self._chains)) * len(rows) * len(space.model.layers) > KEPT:
                self._chains.clear()
            devices = space.cluster.devices
            groups = tuple(tuple(devices[index] for index in row) for row in rows)
            self._chains[key] = space.prices.chain(groups, size)
        return self._chains[key]
