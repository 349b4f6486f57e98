"""Aggregate nodes: very many shapes at once, bounded by one dynamic programme that also names the best of them.

::

    PlacementsNode      equal stages, all ways to lie on nodes      one question closes most of them
     └ AggregateNode    one layout at a micro-batch size            asked for ever closer targets
        └ DeviceGroupsNode     its best shape                              (a small one is a tree of all its shapes)

A large node is asked for something far below the incumbent first, then for less::

    incumbent ─────────────────────────────────
    3 % below             ▲              ▲          nodes pass one target after the other,
    10 % below      ▲     │        ▲     │          always the one of least bound first
    floors          │     │        │     │

To exclude what is much better takes little time, and the bound of all rises together with the least one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pipeplan.core.cluster import StageDevices
from pipeplan.search.branch_and_bound import ACCURACY, Node, PlanSearch, Step, Turn
from pipeplan.search.nodes.aggregate_problem import Layout, allocation_problem
from pipeplan.search.nodes.device_groups import DeviceGroupsNode
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.device_groups import Modes, arrange
from pipeplan.search.space.in_flight import free_family
from pipeplan.search.space.space import Space
from pipeplan_formulations import allocation
from pipeplan_formulations.common.report import Limits, Stop

FIRST_SLICE = 4.0
"""Seconds that a node gets at first; four times as many each time they were not enough."""
ROUGH = 5
"""How much less accurate the bound over all placements may be: what it finds is asked again for each."""
TARGETS = (0.1, 0.03, 0.01, 0.003, 0.001)
"""Shares by which targets lie below the incumbent, until the gap that is wanted."""
CLOSE = 5e-4
"""The relative gap at which the most promising shape of many is good enough: simulation decides the rest."""


@dataclass(frozen=True, slots=True)
class Target:
    """One question to the dynamic programme: is there a value below ``cutoff``? The bound is ``accuracy`` close to it.

    ``last``: whether nothing is left to ask after it, unless the incumbent changes.
    """

    cutoff: int | None
    accuracy: float
    last: bool


@dataclass
class TargetSchedule:
    """The number of the target that a node has reached."""

    number: int = 0

    def next_below(self, search: PlanSearch, bound: int) -> Target:
        """The lowest target from here on that lies above the node's bound."""
        value, gap = search.value, search.limits.gap
        shares = (*(share for share in TARGETS if share > gap), gap)
        last = len(shares) - 1
        if value is None:
            return Target(None, shares[0], last=False)
        self.number = min(self.number, last)
        while self.number < last and below(value, shares[self.number]) <= bound:
            self.number += 1
        share = shares[self.number]
        return Target(below(value, share), _accuracy(share), last=self.number == last)

    def passed(self) -> None:
        """Go on to the next target."""
        self.number += 1


def below(value: int, share: float) -> int:
    """A value less that share of it, rounded up."""
    return value - int(share * value)


def at_once(search: PlanSearch) -> Target:
    """The last target."""
    gap, most = search.limits.gap, search.cutoff
    return Target(most, max(gap, CLOSE) if most is None else _accuracy(gap), last=True)


def _accuracy(share: float) -> float:
    """Relative accuracy of a bound. What is found is simulated, so bounds nearer to it than `CLOSE` say little."""
    return max(ACCURACY * share, CLOSE)


@dataclass
class AggregateNode(Node):
    """All shapes of a layout at a micro-batch size, under 1F1B with any in-flight counts or under the other families.

    Where there are few devices the node is a tree, and every shape is looked at whose bound does not exclude it: below
    a node lie the shape of its ``last`` modes alone, and one node for each mode that may stand before them.

    A large node follows a `TargetSchedule`. 1F1B's bound is GPipe's too (docs/bounds.md); where it can be raised no
    further, GPipe's best is looked for by itself.
    """

    bound: int
    space: Space
    layout: Layout
    size: int
    alternating: bool
    last: Modes = ()
    slice: float = FIRST_SLICE
    proved: int = 0
    targets: TargetSchedule = field(default_factory=TargetSchedule)

    @property
    def small(self) -> bool:
        """Whether it is a tree."""
        return self.layout.small(len(self.space.model.layers))

    @property
    def covers(self) -> bool:
        """Whether it is 1F1B's and bounds the other families too, so that no other node asks for them."""
        others = [each for each in self.space.families if not each.alternates]
        return self.alternating and not self.small and bool(others) and self.space.phased

    @property
    def rank(self) -> tuple[int, ...]:
        """What takes the least time first; gradients that stay in nodes. In a tree, what is nearly a shape."""
        cost = self.layout.unit if self.small else self.layout.cells(1)
        tile = self.layout.tile or self.layout.unit
        return (2, int(self.slice), not self.alternating, 0 if self.small else self.size, cost, -tile, -len(self.last))

    @property
    def turn(self) -> Turn:
        """Roots of trees take little time; layouts of one width find a first plan soonest."""
        if self.last or self.slice > FIRST_SLICE:
            return Turn.BY_BOUND
        if self.small:
            return Turn.EARLY
        return Turn.UNTIL_A_PLAN if len(self.layout.widths) == 1 else Turn.BY_BOUND

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Ask for something better, simulate it, and open what lies below.

        In a large layout that is its best shape; the others are left with the node's bound, unless there is more time
        to raise it. The problem does not know all wishes: where its solution breaks one, the node becomes a tree.
        """
        target = self._target(search)
        problem = allocation_problem(self.space, self.size, self.layout, self.alternating, self.last)
        slice_ = min(search.left / 2, self.slice)  # others have something to do as well
        report = allocation.solve(problem, Limits(slice_, target.accuracy), cutoff=target.cutoff, known=self.proved)
        if not self.learn(report):
            return Step.nothing()
        self.proved = report.bound
        unfinished = report.stop is Stop.TIME
        self.slice *= 4 if unfinished else 1
        if report.solution is None:  # nothing is better than what is known, or better enough
            last = target.last or report.stop is Stop.EXHAUSTED
            return Step.split([self]) if unfinished or not last else Step.leave(self.bound)
        groups = self._groups(self.layout.modes(report.solution))
        promising = search.value is None or (report.objective or 0) < search.value
        boundaries = (0, *(place.end for place in report.solution))
        candidates = [] if groups is None else self._alike(self.space.candidates(groups, self.size))
        wanted = any(self.space.unasked(candidate, boundaries) is None for candidate in candidates)
        if wanted and promising:
            chosen = _held(candidates, problem.in_flight_counts(report.solution))
            search.submit_all([*candidates, *chosen], boundaries)
        if self.small:
            return Step.split(list(self._below()))
        if unfinished and search.left > FIRST_SLICE:
            return Step.split([self])
        if not unfinished and (not wanted or search.value is None):  # its best is no plan: others may be one
            return Step.split(list(self._below()))
        if not target.last and not unfinished:
            self.targets.passed()
            return Step.split([self])
        nodes: list[Node] = []
        if groups is not None and wanted:
            nodes.append(DeviceGroupsNode(self.bound, self.space, groups, self.size, self.alternating))
        if self.covers:
            nodes.append(AggregateNode(self.bound, self.space, self.layout, self.size, alternating=False))
        return Step.leave(self.bound, nodes)

    def _target(self, search: PlanSearch) -> Target:
        return at_once(search) if self.small else self.targets.next_below(search, self.bound)

    def _below(self) -> Iterator[Node]:
        groups = self._groups(self.last) if self.last else None
        job = self.space.job
        if groups is not None and (not job.depths or len(groups) in job.depths):
            yield DeviceGroupsNode(self.bound, self.space, groups, self.size, None if self.covers else self.alternating)
        deepest = min(max(job.depths, default=len(self.space.model.layers)), len(self.space.model.layers))
        if len(self.last) < deepest:
            for mode in self.layout.before(self.last):
                yield replace(self, last=(mode, *self.last), targets=replace(self.targets))

    def _groups(self, modes: Modes) -> StageDevices | None:
        return arrange(self.space.classes, modes, self.layout.tile)

    def _alike(self, candidates: list[Candidate]) -> list[Candidate]:
        return [each for each in candidates if self.covers or each.family.alternates == self.alternating]


@dataclass
class PlacementsNode(Node):
    """Equal layouts that differ in how replicas lie on nodes only; below it lies one aggregate node per layout.

    A relaxation with the best of all placements closes most of them at once.
    """

    bound: int
    space: Space
    layouts: tuple[Layout, ...]
    size: int
    alternating: bool
    targets: TargetSchedule = field(default_factory=TargetSchedule)

    @property
    def rank(self) -> tuple[int, ...]:
        """As of the nodes below it."""
        return self._aggregate(_best_of(self.layouts)).rank

    @property
    def turn(self) -> Turn:
        """As of the nodes below it."""
        return Turn.UNTIL_A_PLAN

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Ask for something better under all placements at once; if there is, ask each. Without a plan, ask one."""
        if search.value is None:
            first, *rest = sorted(self.layouts, key=lambda layout: self._aggregate(layout).rank)
            others = replace(self, layouts=tuple(rest)) if len(rest) > 1 else self._aggregate(*rest)
            return Step.split([self._aggregate(first), others])
        target = self.targets.next_below(search, self.bound)
        problem = allocation_problem(self.space, self.size, _best_of(self.layouts), self.alternating)
        limits = Limits(min(search.left / 2, FIRST_SLICE / 2), ROUGH * target.accuracy)
        report = allocation.solve(problem, limits, cutoff=target.cutoff, known=self.bound)
        if not self.learn(report):
            return Step.nothing()
        if report.solution is None and report.stop is not Stop.TIME and not target.last:
            return Step.split([self])
        return Step.split([self._aggregate(layout) for layout in self.layouts])

    def _aggregate(self, layout: Layout) -> AggregateNode:
        return AggregateNode(self.bound, self.space, layout, self.size, self.alternating, targets=replace(self.targets))


def _held(candidates: list[Candidate], in_flight: list[int]) -> list[Candidate]:
    """The candidate with these in-flight counts, unless it is among those known."""
    if not candidates or not candidates[0].free or not candidates[0].family.alternates:
        return []
    other = replace(candidates[0], family=free_family(tuple(in_flight)))
    return [] if any(other.in_flight == each.in_flight for each in candidates) else [other]


def _best_of(layouts: tuple[Layout, ...]) -> Layout:
    """A layout that no placement surpasses: gradients and tensors take the faster of a node's link and the network."""
    units = tuple(max(numbers) for numbers in zip(*(layout.units for layout in layouts), strict=True))
    return replace(layouts[0], units=units, per_node=tuple(count + 1 for count in units), tile=None, loose=True)
