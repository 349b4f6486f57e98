"""Aggregate nodes: many device groups at once, bounded by one dynamic programme that also finds the best of them.

::

    AggregateNode          one layout at a micro-batch size           solved for ever closer targets
     └ DeviceGroupsNode    its best device groups                     (a small layout is a tree of all its groups)

A large node is first solved for values far below the incumbent, then for values closer to it::

    incumbent ─────────────────────────────────
    3 % below             ▲              ▲          nodes pass one target after the other,
    10 % below      ▲     │        ▲     │          always the one of least bound first
    lower bounds    │     │        │     │

It takes little time to exclude much better values, and the bound of all nodes rises with the least one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from pipeplan.core.job import SHARDED
from pipeplan.core.splits import Mix
from pipeplan.search.branch_and_bound import ACCURACY, Node, PlanSearch, Step, Turn
from pipeplan.search.nodes.aggregate_problem import allocation_problem
from pipeplan.search.nodes.device_groups import DeviceGroupsNode
from pipeplan.search.nodes.first_plans import submit
from pipeplan.search.nodes.layout_hint import LayoutHint
from pipeplan.search.nodes.layouts import Layout
from pipeplan.search.regimes import REGIMES
from pipeplan.search.space.device_groups import Modes, most_stages
from pipeplan.search.space.space import Placed, Space
from pipeplan_formulations import allocation
from pipeplan_formulations.allocation import Allocation, ChainAllocation, FurthestEnd
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Report, Stop

FIRST_SLICE, SHARE = 4.0, 0.125
"""Seconds of a node's first solve, or for a target this share of the time limit if that is more; four times as many
each time they raised no bound."""
TARGETS = (0.2, 0.15, 0.1, 0.07, 0.05, 0.037, 0.027, 0.019, 0.014, 0.01, 0.007, 0.005, 0.003, 0.001)
"""Targets as shares below the incumbent, before that of the requested gap."""
NEARER = 5e-3
"""A target whose programme does not run in time is approached by halves, until it is this close to the bound."""
CLOSE = 5e-4
"""Relative gap at which the most promising device groups are good enough: simulation decides the rest."""
CLOSE_IN_TREE = 2e-5
"""The same in a tree, whose nodes below begin with this bound."""
ESTIMATED, ESTIMATED_LATER = 2e-3, 1e-2
"""Relative accuracy of a layout's first bound and allocations: until there is a plan, and then."""
ESTIMATED_AGAIN = 2e-3
"""The same of a layout that is not tiny, and whose first bound is the least of all nodes."""
CROWDED = 2**13
"""Layers x units x widths from which on small layouts are bounded more closely: each solve of a tree takes longer."""
MOST_ESTIMATED = REGIMES.first_plans_devices.most
"""Most devices with which layouts are bounded first: beyond, a simulation takes seconds, and targets come too late."""


@dataclass(frozen=True, slots=True)
class Target:
    """A limit for one solve: search a value below ``cutoff``, with a bound of relative accuracy ``accuracy``.

    ``last``: no target follows, unless the incumbent changes.
    """

    cutoff: int | None
    accuracy: float
    last: bool


@dataclass
class TargetSchedule:
    """Sequence of targets of a node; ``number`` is the current one.

    ``undecided`` is a cutoff so close to the incumbent that the programme did not run in its slice of time.
    ``found`` is the value of an allocation: no closer target raises the bound above it.
    """

    number: int = 0
    undecided: int | None = None
    found: int | None = None

    def next_below(self, search: PlanSearch, bound: int) -> Target:
        """Return the lowest remaining target above the node's bound."""
        value, gap = search.value, search.limits.gap
        shares = (*(share for share in TARGETS if share > gap), gap)
        last = len(shares) - 1
        if value is None:
            return Target(None, shares[0], last=False)
        self.number = min(self.number, last)
        while self.number < last and below(value, shares[self.number]) <= bound:
            self.number += 1
        share = shares[self.number]
        cutoff = below(value, share)
        if self.found is not None and self.found < below(value, gap):
            return Target(self.found + 1, CLOSE, last=True)
        if self.undecided is not None and self.undecided <= cutoff:
            return Target((bound + self.undecided) // 2, _accuracy(share), last=False)
        return Target(cutoff, _accuracy(share), last=self.number == last)

    def approach(self, target: Target, bound: int, unfinished: bool) -> bool:
        """Halve the distance to a target that took too long; return True if it needs a longer slice of time instead."""
        if unfinished:
            self.undecided = target.cutoff
        if self.undecided is None or self.undecided - bound > NEARER * self.undecided:
            return unfinished and target.cutoff is None
        self.undecided = None
        return True

    def passed(self) -> None:
        """Move to the next target."""
        self.number += 1

    def reached(self, value: int) -> None:
        """Note the value of an allocation below the target; the one that follows is the last."""
        self.found = value

    def forgotten(self) -> bool:
        """Go on behind that value; True if there was one."""
        before, self.found = self.found, None
        return before is not None


def below(value: int, share: float) -> int:
    """The value reduced by a share of it, rounded up."""
    return value - int(share * value)


def at_once(search: PlanSearch) -> Target:
    """Return the last target, at the requested gap."""
    gap, most = search.limits.gap, search.cutoff
    return Target(most, max(gap, CLOSE) if most is None else _accuracy(gap), last=True)


def _within(cutoff: int | None, other: int | None) -> bool:
    """True if a solver with the other cutoff can go on with this one."""
    return other is None or (cutoff is not None and cutoff <= other)


def _accuracy(share: float) -> float:
    """Relative accuracy of a bound. Solutions are simulated, so bounds closer to them than `CLOSE` help little."""
    return max(ACCURACY * share, CLOSE)


@dataclass
class AggregateNode(Node):
    """All device groups of a layout at a micro-batch size, under 1F1B with any counts or under the other families.

    With few devices the node is a tree over all device groups that its bounds do not exclude. Below a node are the
    device groups of its ``last`` modes alone, and one node for each mode that may precede them.

    A node follows its ``targets``; None where all layouts are small, and decided at once. 1F1B's bound is GPipe's too
    (docs/bounds/allocation.md). When it cannot be raised any further, GPipe's best plan is searched by itself.
    ``known``: the best allocation of the node above. ``alone``: 1F1B's, where the other families are excluded.
    """

    bound: int
    space: Space
    layout: Layout
    size: int
    alternating: bool
    last: Modes = ()
    slice: float = FIRST_SLICE
    proved: int = 0
    estimated: bool = False
    again: bool = False
    known: Allocation = ()
    alone: bool = False
    targets: TargetSchedule | None = field(default_factory=TargetSchedule)
    _problem: ChainAllocation | None = field(default=None, init=False, repr=False)
    _solver: allocation.Solver | None = field(default=None, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without what each process makes for itself."""
        return vars(self) | {"_problem": None, "_solver": None}

    @property
    def shared(self) -> bool:
        """Whole layouts, one after another target; not those that need more time than a batch has."""
        return not self.last and self.targets is not None and not self.layout.pooled and self.slice <= FIRST_SLICE

    @property
    def begun(self) -> bool:
        """Whether its solver has begun, which is not sent."""
        return self._solver is not None

    @property
    def small(self) -> bool:
        """True if the node is a tree over all its device groups."""
        return self.layout.small(len(self.space.model.layers))

    @property
    def covers(self) -> bool:
        """True if the node is 1F1B's and bounds the other families too, so that these need no other node."""
        others = [each for each in self.space.families if not each.alternates]
        whole = not self.layout.by_family(len(self.space.model.layers))
        return self.alternating and whole and bool(others) and self.space.phased and not self.alone

    @property
    def rank(self) -> tuple[int, ...]:
        """The least effort first, then tiles that keep gradients in nodes; in a tree, the deepest first."""
        tile, effort = self.layout.tile or self.layout.unit, self.layout.cells(1)
        size = 0 if self.small else self.size
        return (2, int(self.slice), not self.alternating, effort, self.bound, size, -tile, -len(self.last))

    @property
    def turn(self) -> Turn:
        """Until a plan for equal layouts, which find one soonest."""
        if self.last or self.slice > FIRST_SLICE or self.layout.unequal:
            return Turn.BY_BOUND
        return Turn.UNTIL_A_PLAN

    @property
    def parts(self) -> tuple[str, ...]:
        """The layout at its micro-batch size; nothing below the root of a tree."""
        if self.last:
            return ()
        others = "" if self.alternating else ", not 1F1B"
        return (f"micro-batch {self.size}, {self.layout.as_text()}{others}{self.space.suffix}",)

    @property
    def joins(self) -> bool:
        """True for single devices where some layouts are large; for teams of one size up to level 1 of ZeRO."""
        split = self.space.split
        alike = self.targets is not None if split is None else self.space.job.level < SHARDED
        return alike and not isinstance(split, Mix) and len(self.space.cluster.devices) <= MOST_ESTIMATED

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Solve for a better plan, simulate it, and open the nodes below.

        In a large layout that is the node of its best device groups. The others keep this node's bound, unless there is
        time to raise it. The problem does not contain all constraints: where its solution breaks one, the node becomes
        a tree.
        """
        problem = self._problem or allocation_problem(self.space, self.size, self.layout, self.alternating, self.last)
        problem = self._of_one_family(search, problem)
        whole = search.whole or search.limits.time
        slice_ = self.slice * (1.0 if self.targets is None else max(1.0, SHARE * whole / FIRST_SLICE))
        slice_ = min(search.left / (2 if search.value is None else 1), slice_)  # leave others time to find a plan
        if self.estimated and self.again and search.cutoff is not None:
            return self._estimate_again(search, problem, Clock(Limits(slice_)))
        if not self.estimated and (self.layout.pooled or len(self.space.cluster.devices) <= MOST_ESTIMATED):
            return self._estimate(search, problem, Clock(Limits(slice_)))
        if self._is_known(search, problem):
            return Step.split(list(self._below()))
        target = self._target(search)
        before = self.proved
        self.hint(search, problem)
        report = self._solve(problem, target, slice_)
        if not self.learn(report):
            return Step.nothing()
        unfinished, solver = report.stop is Stop.TIME, self._solver
        self._prepare(search, problem, target, unfinished, raised=self.proved > before)
        # No solution: continue with more time or the next target; leave the node after the last one.
        if report.solution is None:  # nothing lies below the target
            if report.stop is Stop.EXHAUSTED and (self.small or search.value is None):  # what was found does not fit
                return Step.split(list(self._below()))
            excluded = self.targets is not None and self.targets.forgotten()  # by the two trips
            last = (target.last and not excluded) or report.stop is Stop.EXHAUSTED
            return Step.split([self]) if unfinished or not last else Step.leave(self.bound)
        value, self.known = report.objective or 0, report.solution
        rows = (self._submit(search, own, problem, report.solution, value) for own in self.space.chosen(self.size))
        found = list(chain.from_iterable(rows))
        if search.fathoms(self.bound):
            return Step.leave(self.bound)
        # A node solves again until it is decided, and a large one until its last target; a tree branches then.
        missed = target.cutoff is not None and value >= target.cutoff
        if unfinished and (self.small or missed or search.left > FIRST_SLICE):
            return Step.split([self])
        if self.small:
            return Step.split(list(self._below()))
        if not unfinished and (not found or search.value is None):  # not a plan; other solutions may be one
            return Step.split(list(self._below()))
        if not target.last and not unfinished and value > self.bound * (1 + CLOSE_IN_TREE):  # else no target raises it
            # At or above the cutoff, the schedule goes on by itself.
            if self.targets is not None and target.cutoff is None:
                self.targets.passed()
            elif self.targets is not None and not missed:
                self.targets.reached(value)
                self._solver = solver  # goes on
            return Step.split([self])
        # After the last target only the best device groups are searched further, and GPipe by itself.
        nodes = self._open(found, self.alternating)
        if self.covers:
            nodes.append(AggregateNode(self.bound, self.space, self.layout, self.size, alternating=False))
        return Step.leave(self.bound, nodes)

    def hint(self, search: PlanSearch, problem: ChainAllocation) -> None:
        """Tell the local search that the search works on this layout, of stages with any numbers of replicas."""
        open_ = self.layout.unequal and not self.layout.pooled and not self.last
        if open_ and self.alternating and problem.for_cycles and self.targets is not None:
            search.hint(LayoutHint(*self.space.key, self.size, self.layout))

    def _solve(self, problem: ChainAllocation, target: Target, slice_: float) -> Report[Allocation]:
        """Solve for a target, or go on with it where its solver has begun."""
        solver = self._solver
        if solver is None or not _within(target.cutoff, solver.cutoff):
            solver = allocation.Solver(problem, cutoff=target.cutoff, known=self.proved)
        accuracy = min(target.accuracy, CLOSE_IN_TREE) if self.last else target.accuracy
        report = solver.run(Limits(slice_, accuracy), target.cutoff)
        self.proved, self._solver = report.bound, solver
        return report

    def _prepare(
        self, search: PlanSearch, problem: ChainAllocation, target: Target, unfinished: bool, raised: bool
    ) -> None:
        """Prepare the next solve: what it goes on with, its target and its slice of time."""
        begun = unfinished and self._solver is not None and self._solver.begun
        # What is known of its spans helps with later targets.
        self._problem = None if self.small and not unfinished else problem
        self._solver = self._solver if begun else None
        if unfinished and not self.last and search.value is not None and self.targets is None:
            self.targets, self._solver = TargetSchedule(), None  # better values first
        longer = unfinished and not raised
        if self.targets is not None and not begun:
            longer = self.targets.approach(target, self.bound, unfinished)
        if longer:
            self.slice *= 4

    def _of_one_family(self, search: PlanSearch, problem: ChainAllocation) -> ChainAllocation:
        """The problem with the two trips, once the plans of other families that it covers are no better than wanted."""
        if self.covers and self.estimated and search.cutoff is not None:
            others = allocation_problem(self.space, self.size, self.layout, alternating=False)
            clock, most = Clock(Limits(min(search.left, self.slice))), search.cutoff
            self.alone = FurthestEnd(others, clock).lower_bound(most - 1, most, closely=False) >= most
        if not self.alternating or self.covers or problem.two_trips:
            return problem
        self._solver = None  # of another problem
        return replace(problem, two_trips=True)

    def _is_known(self, search: PlanSearch, problem: ChainAllocation) -> bool:
        """True in a tree if the allocation of the node above is one of this node's, and no solve raises the bound."""
        if not self.last or not problem.feasible(self.known):
            return False
        value = problem.evaluate(self.known)
        return not search.fathoms(value) and value <= self.bound * (1 + CLOSE_IN_TREE)

    def _estimate(self, search: PlanSearch, problem: ChainAllocation, clock: Clock) -> Step[Node]:
        """Raise the bound by the furthest-end programme, and simulate its allocations.

        Once there is a plan, equal layouts only get a bound, of single devices up to the next target: `first_plans` has
        tried the packed ones, which find better plans sooner than tiles. For large pooled layouts that is all, but for
        the device groups found.
        """
        self.estimated, self.again = True, not self.small or self.layout.cells(len(self.space.model.layers)) > CROWDED
        programme, pooled = FurthestEnd(problem, clock), self.layout.pooled
        sought = pooled or self.layout.unequal or search.value is None
        high = problem.largest + 1 if search.cutoff is None else max(search.cutoff, self.bound)
        accuracy = ESTIMATED if search.value is None else ESTIMATED_LATER
        if not sought and self.space.split is None:
            high = self._next_high(search, high)
        self.bound = programme.lower_bound(self.bound, high, accuracy, closely=False)
        if search.cutoff is None and self.bound == high:  # no allocation fits
            return Step.nothing()
        if search.fathoms(self.bound):
            return Step.leave(self.bound)
        found = list[Placed]()
        for space in self.space.chosen(self.size) if sought else ():
            if space is not self.space:
                problem = allocation_problem(space, self.size, self.layout, self.alternating)
                programme = FurthestEnd(problem, clock)
            for stages in programme.allocations(self.bound, high, accuracy):
                found += self._submit(search, space, problem, stages, self.bound)
        bounded_only = pooled and not self.small
        return Step.leave(self.bound, self._open(found, self._families)) if bounded_only else Step.split([self])

    def _estimate_again(self, search: PlanSearch, problem: ChainAllocation, clock: Clock) -> Step[Node]:
        """Raise the bound by the furthest-end programme, more closely: to the next target, until it misses one."""
        most = search.cutoff or self.bound
        high = self._next_high(search, most)
        self.bound = FurthestEnd(problem, clock).lower_bound(self.bound, high, ESTIMATED_AGAIN)
        self.again = high <= self.bound < most
        return Step.leave(self.bound) if search.fathoms(self.bound) else Step.split([self])

    def _next_high(self, search: PlanSearch, most: int) -> int:
        """The next target, or ``most`` if that is less or there are no targets; not below the bound."""
        target = None if self.targets is None else self.targets.next_below(search, self.bound).cutoff
        return max(most if target is None else min(target, most), self.bound)

    @property
    def _families(self) -> bool | None:
        """Only 1F1B (True), only the other families (False), or all (None)."""
        return None if self.covers else self.alternating

    def _submit(
        self, search: PlanSearch, space: Space, problem: ChainAllocation, stages: Allocation, bound: int
    ) -> list[Placed]:
        """Simulate an allocation under the node's families; see `first_plans.submit`."""
        return submit(search, space, self.size, self.layout, problem, stages, bound, self._families)

    def _open(self, found: Iterable[Placed], alternating: bool | None) -> list[Node]:
        """The nodes of device groups, which may be few devices of those that the bound counts."""
        nodes: list[Node] = []
        for space, groups in found:
            alone = space.lower_bounds(self.size).of_stages((group[0].kind.name, len(group)) for group in groups)
            nodes.append(DeviceGroupsNode(max(self.bound, alone), space, groups, self.size, alternating))
        return nodes

    def _target(self, search: PlanSearch) -> Target:
        return at_once(search) if self.targets is None else self.targets.next_below(search, self.bound)

    def _below(self) -> Iterator[Node]:
        """The nodes of the tree below: these modes alone, and one more stage before them."""
        job = self.space.job
        if self.last and (not job.depths or len(self.last) in job.depths):
            yield from self._open(self.space.every_placed(self.last, self.layout.tile), self._families)
        if len(self.last) < most_stages(job, len(self.space.model.layers), job.batch // self.size):
            for mode in self.layout.before(self.last):
                for space in self.space.with_mode(mode):
                    targets = self.targets and replace(self.targets, found=None)
                    yield replace(self, space=space, last=(mode, *self.last), estimated=True, targets=targets)
