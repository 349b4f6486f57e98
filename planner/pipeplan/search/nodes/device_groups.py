"""Nodes of device groups under all schedules, and of device groups that are not enumerated yet.

::

    enumerated       DeviceGroupsNode DeviceGroupsNode …    each with its own bound
    few              UnplacedNode                           one bound for each row of modes (`nodes.rows`)
    remaining        RemainingGroupsNode                    one bound over all of them, until the last one is enumerated

One dynamic programme bounds all families of a DeviceGroupsNode at once. It has the memory of the family that holds
least and the warm-up of the one that holds most.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import numpy as np

from pipeplan.core.cluster import StageDevices
from pipeplan.core.job import SHARDED
from pipeplan.search.branch_and_bound import Node, PlanSearch, Step, Turn
from pipeplan.search.nodes.family import InFlightNode, family_node
from pipeplan.search.space.candidates import Candidate, partition_problem
from pipeplan.search.space.device_groups import Modes
from pipeplan.search.space.in_flight import InFlightBox
from pipeplan.search.space.space import Space
from pipeplan_formulations import partition

LOT = 100
"""Device groups that are enumerated at once,"""
FIRST_OF_LOT = 2
"""and the number of them that are advanced before the next lot."""


@dataclass
class SpaceNode(Node):
    """Plans of a space at a micro-batch size, all of them or some."""

    bound: int
    space: Space
    size: int

    @property
    def teams(self) -> tuple[int, ...]:
        """Those of the space's split."""
        return (1,) if self.space.split is None else self.space.split.teams


@dataclass
class DeviceGroupsNode(Node):
    """Device groups and a micro-batch size; below are nodes of 1F1B and of other families, then one node per family.

    ``alternating``: only 1F1B families (True), only the others (False), or all (None).
    """

    bound: int
    space: Space
    groups: StageDevices
    size: int
    alternating: bool | None = None

    @property
    def rank(self) -> tuple[int, ...]:
        """Fewer stages first."""
        return (1, len(self.groups))

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Bound all families at once, simulate the partition found under each, and open the nodes below."""
        below = self.space.candidates(self.groups, self.size)
        if self.space.job.level >= SHARDED:  # `bound` is without what passes wait for
            self.bound = max(self.bound, self.space.lower_bounds(self.size).of_chain(below[0].chain))
            if search.fathoms(self.bound):
                return Step.leave(self.bound)
        alike = [each for each in below if each.family.alternates and self.alternating is not False]
        others = [each for each in below if not each.family.alternates and self.alternating is not True]
        if alike and others:
            return self._within(search, below, [replace(self, alternating=each) for each in (True, False)])
        box = InFlightBox.of(alike[0].replicas, alike[0].micro_batches) if alike and alike[0].free else None
        if box is not None and box.size > 1:
            inside = tuple(each for each in alike if each.in_flight in box)
            outside = [each for each in alike if each.in_flight not in box]
            return Step.split([InFlightNode(self.bound, inside, box), *self._families(outside)])
        if len(alike) > 1:
            return self._within(search, alike, self._families(alike))
        return Step.split(self._families(alike or others))

    def _families(self, candidates: list[Candidate]) -> list[Node]:
        return [family_node(candidate, self.bound) for candidate in candidates]

    def _within(self, search: PlanSearch, candidates: list[Candidate], below: Sequence[Node]) -> Step[Node]:
        """Open the nodes below with a bound on all candidates; none if that bound closes the node.

        Two lanes obey the warm-up bound too, as each of their backwards takes F + B (docs/bounds/chain.md).
        """
        counts = [candidate.in_flight for candidate in candidates]
        if candidates[0].free:
            box = InFlightBox.of(candidates[0].replicas, candidates[0].micro_batches)
            counts += [box.low, box.high]
        held, warm_up = np.min(counts, axis=0), np.max(counts, axis=0)
        # One lane needs the least workspace, and 1F1B obeys an inequality that others need not.
        one_lane = min(candidates, key=lambda candidate: (candidate.family.two_lanes, candidate.family.alternates))
        problem = partition_problem(one_lane, tuple(held.tolist()), tuple(warm_up.tolist()))
        report = partition.solve(problem, search.precise(search.left), backend="listing", cutoff=search.cutoff)
        if not self.learn(report):
            return Step.nothing()
        if report.solution is not None:
            search.submit_all(candidates, report.solution)
        if search.fathoms(self.bound):
            return Step.leave(self.bound)
        for node in below:
            node.bound = max(node.bound, self.bound)
        return Step.split(below)


@dataclass
class EarlyDeviceGroups(DeviceGroupsNode):
    """Device groups that are advanced early, to find a good plan soon."""

    @property
    def turn(self) -> Turn:
        """Before all other nodes."""
        return Turn.EARLY


@dataclass
class UnplacedNode(SpaceNode):
    """The device groups of one row of modes at a micro-batch size, placed once their bound has its turn."""

    modes: Modes

    @property
    def rank(self) -> tuple[int, ...]:
        """As the device groups below, fewer stages first."""
        return (1, len(self.modes))

    def advance(self, search: PlanSearch) -> Step[Node]:  # noqa: ARG002
        """Place the row."""
        every = self.space.placing.of(self.modes)
        return Step.split([DeviceGroupsNode(self.bound, self.space, groups, self.size) for groups in every])


@dataclass
class RemainingGroupsNode(SpaceNode):
    """All device groups at a micro-batch size that are not enumerated yet; there may be more than time allows.

    Those with equally many replicas per stage come first, as they are few and good. The most promising ones of each lot
    are advanced at once, so that there are plans even if the enumeration does not end.
    """

    early: bool = True
    _pending: Iterator[tuple[StageDevices, int]] | None = field(default=None, repr=False)

    @property
    def rank(self) -> tuple[int, ...]:
        """After enumerated device groups."""
        return (3, self.size)

    @property
    def turn(self) -> Turn:
        """Early until there is a first plan; or late, where others are sought first."""
        return Turn.UNTIL_A_PLAN if self.early else Turn.LATE

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Enumerate another lot, unless the time is over."""
        if search.left <= 0:
            return Step.split([self])
        self._pending = self._pending or self._listed()
        lot = sorted(islice(self._pending, LOT), key=lambda entry: entry[1])
        nodes: list[Node] = []
        for number, (groups, bound) in enumerate(lot):
            kind = EarlyDeviceGroups if self.early and number < FIRST_OF_LOT else DeviceGroupsNode
            nodes.append(kind(max(bound, self.bound), self.space, groups, self.size))
        return Step.split([*nodes, self] if len(lot) == LOT else nodes)

    def _listed(self) -> Iterator[tuple[StageDevices, int]]:
        space = self.space
        if space.job.equal_replicas:
            return space.device_groups(self.size)
        alike = Space(space.model, space.cluster, replace(space.job, equal_replicas=True), space.split)
        others = (entry for entry in space.device_groups(self.size) if len({len(group) for group in entry[0]}) > 1)
        return chain(alike.device_groups(self.size), others)
