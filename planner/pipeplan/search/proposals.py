"""Proposals of published heuristics for a job: devices and boundaries, for every micro-batch size.

They do not depend on the job's schedules, so `compare` makes them once for all schedule families.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf

import numpy as np

from pipeplan.baselines.checked import boundaries_of, invalid, own_faults
from pipeplan.baselines.deadline import OutOfTime, ending
from pipeplan.baselines.partitioners import PARTITIONERS, NotApplicable
from pipeplan.baselines.planners import PLANNERS, Arrangement
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.job import SHARDED, Job
from pipeplan.core.model import Model
from pipeplan.core.splits import Mix, Splitting
from pipeplan.costs.chain import Boundaries, Chain
from pipeplan.costs.sharding.question import MixedQuestion, TeamQuestion
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.outside import unable
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
    """Devices, micro-batch size and boundaries.

    ``home`` has the split and the level of ZeRO that a planner chose, if it chooses them.
    """

    rows: Rows
    size: int
    boundaries: Boundaries
    home: tuple[Splitting | None, int] | None = None


@dataclass
class Proposals:
    """What heuristics propose for a model, a cluster and a job, whatever its schedules; kept for the next space.

    Attributes
    ----------
    questions : tuple of TeamQuestion and MixedQuestion, or None
        The questions with teams of this model, cluster and job, if they are known: they do not depend on schedules.
    """

    questions: tuple[TeamQuestion | MixedQuestion, ...] | None = None
    _asked: tuple[Model, Cluster, Job] | None = None
    _made: dict[tuple[str, int], tuple[Proposal | str, ...]] = field(default_factory=dict)
    _spent: dict[tuple[str, int], float] = field(default_factory=dict)
    _chains: dict[tuple[Rows, int, int, Splitting | None], Chain] = field(default_factory=dict)
    _beyond: dict[int, Space | None] = field(default_factory=dict)

    def questions_at(self, schedules: tuple[str, ...]) -> tuple[TeamQuestion | MixedQuestion, ...] | None:
        """The questions with teams under these schedules; None if they are not known."""
        if self.questions is None:
            return None
        return tuple(each.under(schedules) for each in self.questions)

    def begin(self, spaces: Spaces) -> None:
        """Forget what was made for another model, cluster or job."""
        any_order = ("any",) if "any" in spaces.job.schedules else ()  # which hides less of the reductions
        asked = spaces.model, spaces.cluster, replace(spaces.job, schedules=any_order)
        known = self._asked
        if known is None or known[0] is not asked[0] or known[1] is not asked[1] or known[2] != asked[2]:
            self._asked = asked
            self._made.clear()
            self._spent.clear()
            self._chains.clear()
        self._beyond.clear()

    def seconds(self, spaces: Spaces, name: str, size: int) -> float:
        """Approximate seconds in which the heuristic's proposals at a micro-batch size are made.

        That is no less than it was given before, if that did not suffice.
        """
        if (name, size) in self._made:
            return 0.0
        return max(self._estimate(spaces, name), self._spent.get((name, size), 0.0))

    @staticmethod
    def _estimate(spaces: Spaces, name: str) -> float:
        """Approximate seconds by the heuristic's effort."""
        space = spaces.lowest
        if name in PLANNERS and PLANNERS[name].splits:
            effort = sum(PLANNERS[name].effort(home.model, home.cluster) for home in homes(spaces))
            return SECONDS_PER_STEP * effort
        if name in PLANNERS:
            return SECONDS_PER_STEP * PLANNERS[name].effort(space.model, space.cluster)
        return SECONDS_PER_STEP * PARTITIONERS[name].effort(len(space.model.layers), space.deepest)

    def of(self, spaces: Spaces, name: str, size: int, until: float = inf) -> tuple[Proposal | str, ...]:
        """The heuristic's proposals at a micro-batch size, and the reasons where it has none.

        Raises
        ------
        OutOfTime
            If the heuristic computes beyond ``until``.
        """
        if (name, size) not in self._made:
            began = time.monotonic()
            try:
                with ending(until):
                    self._made[name, size] = self._proposed(spaces, name, size)
            except NotApplicable as reason:
                self._made[name, size] = (str(reason),)
            except OutOfTime:
                self._spent[name, size] = time.monotonic() - began
                raise
        return self._made[name, size]

    def _proposed(self, spaces: Spaces, name: str, size: int) -> tuple[Proposal | str, ...]:
        if name not in PLANNERS:
            return self._cut(spaces.lowest, name, size)
        if PLANNERS[name].splits:
            return self._split(spaces, name, size)
        space = spaces.lowest
        with own_faults():
            found = PLANNERS[name].arrange(space.model, space.cluster, space.job, size)
        return self._checked(space, found, size)

    def candidates(
        self, spaces: Spaces, proposal: Proposal, free: bool, overlaps: bool = True, level: int | None = None
    ) -> list[Candidate]:
        """The candidates on a proposal's devices, one per level of ZeRO and family.

        Parameters
        ----------
        overlaps : bool
            Whether reductions may overlap.
        level : int, optional
            The only level, in `spaces` or not. Else those of `Spaces.unsharded` count.
        """
        found: list[Candidate] = []
        own: Iterable[Space] = spaces.unsharded if level is None else self._at(spaces, level)
        if proposal.home is not None:
            home = spaces.find(*proposal.home)
            own = () if home is None else (home,)
        for space in own:
            chain = self._chain(space, proposal.rows, proposal.size)
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
                job = replace(spaces.job, zero=(level,), depths=())
                self._beyond[level] = Space(spaces.model, spaces.cluster, job)
        found = self._beyond[level]
        if found is not None:
            yield found

    def _cut(self, space: Space, name: str, size: int) -> tuple[Proposal, ...]:
        """A partitioner's boundaries; devices without layers are left out."""
        rows = tuple((group[0].index,) for group in space.single_device_groups)
        if not rows:
            raise NotApplicable("the job does not allow one device per stage")
        refusal = unable(space, (1,) * len(rows), space.job.batch // size)
        if refusal is not None:
            raise NotApplicable(refusal)
        chain = self._chain(space, rows, size)
        with own_faults():
            boundaries = boundaries_of(
                PARTITIONERS[name].balance(chain, space.job.batch // size), chain.layers, chain.stages
            )
        kept = [s for s, (a, b) in enumerate(pairwise(boundaries)) if a < b]
        return (_placed(space, tuple(rows[s] for s in kept), size, (0, *(boundaries[s + 1] for s in kept))),)

    def _split(self, spaces: Spaces, name: str, size: int) -> tuple[Proposal | str, ...]:
        """The arrangements of a planner that chooses among splits and levels: those where its own value is least."""
        best: tuple[Proposal | str, ...] = ()
        below, why = inf, ""
        for home in sorted(homes(spaces), key=lambda home: home.lower_bounds(size).evenly_shared(home.cluster)):
            try:
                with own_faults():
                    found = PLANNERS[name].arrange(home.model, home.cluster, home.job, size, below)
            except NotApplicable as reason:
                why = why or str(reason)
                continue
            value = min(arrangement.value or 0.0 for arrangement in found)
            if value < below:
                below, best = value, self._checked(home, found, size, (home.split, home.job.level))
        if not best:
            raise NotApplicable(why)
        return best

    def _checked(
        self,
        space: Space,
        arrangements: Iterable[Arrangement],
        size: int,
        home: tuple[Splitting | None, int] | None = None,
    ) -> tuple[Proposal | str, ...]:
        """A baseline planner's arrangements as proposals, or the reasons why they are invalid."""
        found: list[Proposal | str] = []
        count = space.job.batch // size
        for arrangement in arrangements:
            with own_faults():
                why = invalid(arrangement, len(space.model.layers), space.cluster)
            widest = max(arrangement.replicas, default=0)
            if why is not None:
                found.append(why)
            elif widest > count:  # never searched: some replicas would be idle
                found.append(
                    f"{widest} replicas of a stage share {count} micro-batches; smaller micro-batches keep all busy"
                )
            elif (refusal := unable(space, arrangement.replicas, count)) is not None:
                found.append(refusal)
            else:
                found.append(_placed(space, arrangement.devices, size, arrangement.boundaries, home))
        return tuple(found)

    def _chain(self, space: Space, rows: Rows, size: int) -> Chain:
        """The layers' costs on these devices."""
        key = rows, size, space.job.level, space.split
        if key not in self._chains:
            if (1 + len(self._chains)) * len(rows) * len(space.model.layers) > KEPT:
                self._chains.clear()
            devices = space.cluster.devices
            groups = tuple(tuple(devices[index] for index in row) for row in rows)
            self._chains[key] = space.prices.chain(groups, size)
        return self._chains[key]


def _placed(
    space: Space,
    rows: Rows,
    size: int,
    boundaries: Boundaries,
    home: tuple[Splitting | None, int] | None = None,
) -> Proposal:
    """The proposal on like devices with which it keeps to the pins, if there are any."""
    devices = space.cluster.devices
    groups = space.placing.for_partition(tuple(tuple(devices[d] for d in row) for row in rows), boundaries)
    return Proposal(tuple(tuple(device.index for device in group) for group in groups), size, boundaries, home)


def homes(spaces: Spaces) -> tuple[Space, ...]:
    """The spaces among which planners choose splits: teams of one size, at levels 0 and 1 of ZeRO if there are any.

    Along one axis, at every micro-batch size.
    """
    every = set(spaces.lowest.sizes)
    lowest = spaces.lowest.model
    parts = spaces if lowest.folding is not None else spaces.in_one_round
    own = (space for space in parts if (space.model.slices, space.model.folding) == (lowest.slices, lowest.folding))
    alike = (space for space in own if not isinstance(space.split, Mix) and every <= set(space.sizes))
    found = tuple(space for space in alike if space.split is None or not space.split.mesh)
    return tuple(space for space in found if space.job.level < SHARDED) or found
