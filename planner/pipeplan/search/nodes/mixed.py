"""Nodes of mixes: all ways to fill the nodes with teams of unlike sizes, bounded by one allocation problem.

::

    MixedNode             all mixes at a micro-batch size
    MixedRowNode          a row of modes; these are the roots where rows are few
     └ DeviceGroupsNode   a row of modes, on each mix that holds it in another way

On a small cluster a `MixedNode` is a tree over the modes of all stages, from the last one on. On a large one it is
bounded by the furthest-end programme alone; the allocations that this finds are packed into nodes and simulated, and
the node keeps its bound for all other mixes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import numpy as np

from pipeplan.core.cluster import StageDevices
from pipeplan.costs.chain import Boundaries
from pipeplan.search.branch_and_bound import Node, PlanSearch, Step
from pipeplan.search.nodes.device_groups import DeviceGroupsNode
from pipeplan.search.nodes.first_plans import with_counts
from pipeplan.search.nodes.joined_kinds import JoinedKinds
from pipeplan.search.nodes.mixed_problem import MixedLayout, mixed_problem
from pipeplan.search.regimes import REGIMES
from pipeplan.search.space.device_groups import Mode
from pipeplan.search.space.mixed import MixedSpace, Modes
from pipeplan.search.space.space import Space
from pipeplan_formulations import allocation
from pipeplan_formulations.allocation import Allocation, ChainAllocation, FurthestEnd
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Stop

SLICE = 10.0
"""Seconds of a node's first solve; four times as many each time they were not enough."""
STEPS = (0.0, 0.01, 0.05)
"""Shares below the incumbent of the first targets of the furthest-end programme,"""
ACCURACY = 5e-3
"""relative accuracy of its bounds,"""
FOUND = 1e-2
"""and of the targets for which it looks for allocations."""
GROUPS = REGIMES.mixed_kinds.most
"""Most kinds of teams of one size and class in the problem of a large node; of a small one there is one."""
ROWS = REGIMES.mixed_rows.most
"""Most rows of modes, at a micro-batch size, that are nodes of their own."""


def few_rows(space: MixedSpace, layout: MixedLayout) -> list[Modes] | None:
    """Return all rows of modes with teams of several sizes, those of one size split alike; None if they are many."""
    job, layers = space.question.job, len(space.space.model.layers)
    deepest = min(max(job.depths, default=layers), layers)

    def rows(last: Modes) -> Iterator[Modes]:
        if is_mixed(space, last) and (not job.depths or len(last) in job.depths):
            yield last
        for mode in modes_before(space, layout, last) if len(last) < deepest else ():
            if space.splits_of((mode, *last)) is not None:
                yield from rows((mode, *last))

    found = list(islice(rows(()), ROWS + 1)) if space.complete else []
    return found if space.complete and len(found) <= ROWS else None


def is_mixed(space: MixedSpace, modes: Modes) -> bool:
    """True if teams differ in size, and those of one size split alike; else other questions have such plans."""
    sizes = {space.kinds[mode.device_class].team for mode in modes}
    return len(sizes) > 1 and space.splits_of(modes) is not None


def modes_before(space: MixedSpace, layout: MixedLayout, last: Modes) -> Iterator[Mode]:
    """Yield the modes for a stage before the last ones for which devices are left."""
    left = [len(each.devices) for each in space.classes]
    for mode in last:
        left[space.kinds[mode.device_class].pool] -= space.kinds[mode.device_class].team * mode.replicas
    for number, kind in enumerate(space.kinds):
        for w in np.flatnonzero(layout.able[number]).tolist():
            replicas = layout.widths[w] * layout.unit
            if replicas * kind.team <= left[kind.pool]:
                yield Mode(number, replicas)


@dataclass
class MixedRowNode(Node):
    """A row of modes at a micro-batch size, on every mix that holds it."""

    bound: int
    space: MixedSpace
    modes: Modes
    size: int

    @classmethod
    def of(cls, space: MixedSpace, modes: Modes, size: int) -> "MixedRowNode":
        """The node with a cheap bound."""
        stages = ((space.kinds[mode.device_class].kind.name, mode.replicas) for mode in modes)
        return cls(space.space.lower_bounds(size).of_stages(stages), space, modes, size)

    @property
    def rank(self) -> tuple[int, ...]:
        """Fewer stages first."""
        return (1, len(self.modes))

    def advance(self, search: PlanSearch) -> Step[Node]:  # noqa: ARG002
        """Open its device groups."""
        return Step.split(
            [
                DeviceGroupsNode(self.bound, space, groups, self.size)
                for homes in self.space.every_home(self.modes)
                for space, groups in self.space.placed(self.modes, homes)
            ]
        )


@dataclass
class MixedNode(Node):
    """All mixes at a micro-batch size, under 1F1B with any counts or under the other families.

    In a tree ``last`` has the modes of the last stages, by the number of a `MixedKind`.
    """

    bound: int
    space: MixedSpace
    layout: MixedLayout
    size: int
    alternating: bool
    last: Modes = ()
    slice: float = SLICE
    tried: bool = False
    _every: ChainAllocation | None = field(default=None, repr=False)

    @property
    def small(self) -> bool:
        """True if the node is a tree over all rows of modes."""
        return self.space.complete and self.layout.small(self.space)

    @property
    def covers(self) -> bool:
        """True if the node is 1F1B's and bounds the other families too (docs/bounds/allocation.md)."""
        return self.alternating and self.space.space.phased

    @property
    def rank(self) -> tuple[int, ...]:
        """Behind the questions of one size, whose plans fathom most of the mixes."""
        return (2, 1, int(self.slice), self.bound, 0 if self.small else self.size, -len(self.last))

    @property
    def parts(self) -> tuple[str, ...]:
        """The micro-batch size; nothing below the root of a tree."""
        if self.last:
            return ()
        others = "" if self.covers or self.alternating else ", not 1F1B"
        tokens = ", sequence-parallel" * any(self.space.question.splits[0].sequence)
        return (f"micro-batch {self.size}, {self.layout.in_words()}{tokens}{others}",)

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Raise the bound, simulate plans, and open the nodes below."""
        if self._every is None:
            self._every = mixed_problem(self.space, self.size, self.layout, self.alternating)
        kinds = JoinedKinds.of(self.space, self._every, self.layout, self.last, 1 if self.small else GROUPS)
        return self._branch(search, kinds) if self.small else self._approach(search, kinds)

    def _branch(self, search: PlanSearch, kinds: JoinedKinds) -> Step[Node]:
        """Decide if some allocation is below the cutoff; open the row of the last modes, and each row one longer."""
        slice_ = min(search.left / 2, self.slice)
        gap, most = search.limits.gap, search.cutoff
        report = allocation.solve(kinds.problem, Limits(slice_, max(gap, ACCURACY)), cutoff=most, known=self.bound)
        if not self.learn(report):
            return Step.nothing()
        unfinished = report.stop is Stop.TIME
        if unfinished:
            self.slice *= 4
        if report.solution is None:
            return Step.split([self]) if unfinished else Step.leave(self.bound)
        self._submit(search, kinds, report.solution, report.objective or 0)
        if search.fathoms(self.bound):
            return Step.leave(self.bound)
        return Step.split(list(self._below()))

    def _approach(self, search: PlanSearch, kinds: JoinedKinds) -> Step[Node]:
        """Exclude all that is better than the incumbent, or bound all mixes and find some plans."""
        clock = Clock(Limits(min(search.left / 2, self.slice)))
        programme, high = FurthestEnd(kinds.problem, clock), kinds.problem.largest + 1
        most = high if search.cutoff is None else min(search.cutoff, high)
        for target in (most - int(share * most) for share in STEPS):
            if target <= self.bound:
                break
            if programme.excludes(target):
                self.bound = target
                break
            high = target
        if self.bound >= most:
            return Step.nothing() if search.cutoff is None else Step.leave(self.bound)
        self.bound = programme.lower_bound(self.bound, high, ACCURACY)
        if clock.left <= 0:
            self.slice *= 4
            return Step.split([self])
        nodes: list[Node] = []
        for stages in programme.allocations(self.bound, most, FOUND):
            for own in kinds.one_way(stages):
                found = FurthestEnd(own.problem, clock).allocations(self.bound, own.problem.largest, FOUND)
                nodes += self._submit(search, own, found[0]) if found else []
        return Step.leave(self.bound, nodes)

    def _submit(self, search: PlanSearch, kinds: JoinedKinds, stages: Allocation, bound: int = 0) -> list[Node]:
        """Simulate an allocation on a mix that holds it; return a node of its device groups, if it is a plan."""
        boundaries, nodes = (0, *(place.end for place in stages)), list[Node]()
        for space, groups in chain.from_iterable(
            self._placed(modes, boundaries) for modes in kinds.modes_of(self.layout, stages)
        ):
            candidates = space.candidates(groups, self.size)
            if not self.covers:
                candidates = [each for each in candidates if each.family.alternates == self.alternating]
            if all(space.unasked(candidate, boundaries) is not None for candidate in candidates):
                continue
            if search.value is None or bound < search.value:
                chosen = with_counts(candidates, kinds.problem.in_flight_counts(stages))
                search.submit_all([*candidates, *chosen], boundaries)
            nodes.append(self._groups(space, groups))
        return nodes

    def _placed(self, modes: Modes, boundaries: Boundaries) -> Iterator[tuple[Space, StageDevices]]:
        """The device groups of some stages, if they are a plan of a mix."""
        homes = self.space.homes(modes, boundaries)
        if is_mixed(self.space, modes) and homes is not None:
            yield from self.space.placed(modes, homes)

    def _groups(self, space: Space, groups: StageDevices) -> DeviceGroupsNode:
        return DeviceGroupsNode(self.bound, space, groups, self.size, None if self.covers else self.alternating)

    def _below(self) -> Iterator[Node]:
        """The nodes of the tree below: these modes alone, and one more stage before them."""
        job, layers = self.space.question.job, len(self.space.space.model.layers)
        if is_mixed(self.space, self.last) and (not job.depths or len(self.last) in job.depths):
            for homes in self.space.every_home(self.last):
                for space, groups in self.space.placed(self.last, homes):
                    yield self._groups(space, groups)
        if len(self.last) < min(max(job.depths, default=layers), layers):
            for mode in modes_before(self.space, self.layout, self.last):
                last = (mode, *self.last)
                if self.space.splits_of(last) is not None:
                    yield replace(self, last=last)
