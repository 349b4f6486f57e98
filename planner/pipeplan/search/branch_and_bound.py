"""Branch-and-bound over device groups and schedules, with plans as incumbents.

The loop is that of `pipeplan_formulations.common.branch_and_bound`. Its nodes are device groups
(`search.nodes.device_groups`), and under each its schedule families (`search.nodes.family`). This module adds

- nodes that are advanced early because they soon find a plan, and deferred nodes;
- the time for simulation and for the result;
- a check that keeps plans outside the searched space from becoming the incumbent.

A node solves its formulation up to a cutoff::

    incumbent ─────────┬───────
                       │ gap          gains within the gap are not searched
    cutoff    ─────────┴───────
                  ▲
    bound     ────┘
"""

import heapq
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from pipeplan.baselines.deadline import OutOfTime, ending
from pipeplan.core.cluster import Cluster
from pipeplan.costs.chain import Boundaries
from pipeplan.search.evaluate import EvaluatedPlan, Pace, evaluate, small_enough
from pipeplan.search.local_search import Improver, Sent
from pipeplan.search.space.candidates import Candidate
from pipeplan_formulations.common.branch_and_bound import BranchAndBound, OnProgress, Step
from pipeplan_formulations.common.report import Limits, Report, Status, Stop
from pipeplan_formulations.common.sentinels import UNLIMITED

__all__ = ["Node", "OnProgress", "PlanSearch", "Step", "Turn"]

SLACK = 0.5
"""Seconds beyond the limit in which the result may be finished."""
ACCURACY = 0.1
"""Accuracy of a node's bound, as a share of the distance between cutoff and incumbent."""

NEGLIGIBLE = 1e-4
"""Relative gap at which the local search ends, and teams are not priced: they have hardly anything to gain any more."""
FIRST_PLANS = 1.0
"""Seconds in which early nodes come before the local search: it had better start from the best of their plans."""
FOR_A_PLAN = 1.0
"""Seconds in which nodes of teams of some sizes come early while there is no plan: then it is the turn of others."""


class Turn(Enum):
    """Time at which a node is advanced. A good plan fathoms many nodes, so some that find one quickly come early."""

    BY_BOUND = auto()
    UNTIL_A_PLAN = auto()  # early while there is no plan, by its bound afterwards
    EARLY = auto()  # before all nodes that are not early, whatever its bound
    LATE = auto()  # set aside until `PlanSearch.resume`


class Helper(Protocol):
    """What advances nodes of a search elsewhere; ``away`` are those."""

    away: list["Node"]

    @property
    def bound(self) -> int:
        """The least of their bounds."""

    def exchange(self, search: "PlanSearch") -> None:
        """Give the search the nodes that came back, and take others."""


class Node(ABC):
    """A set of plans that may still hold the best one. ``bound`` is in nanoseconds."""

    bound: int

    @property
    @abstractmethod
    def rank(self) -> tuple[int, ...]:
        """Order among equal bounds: the least is advanced first."""

    @property
    def turn(self) -> Turn:
        """Time at which to advance the node."""
        return Turn.BY_BOUND

    @property
    def teams(self) -> tuple[int, ...]:
        """Sizes of the teams of its plans, 1 for single devices; empty if it has no plans itself."""
        return ()

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts of the space that the node alone bounds, if answers report their bounds by themselves."""
        return ()

    @property
    def shared(self) -> bool:
        """Whether the process beside the search may advance it (`search.nodes.beside`)."""
        return False

    @property
    def begun(self) -> bool:
        """Whether it has begun something that it would have to begin again there."""
        return False

    @property
    def joins(self) -> bool:
        """Whether the node is bounded together with those of other spaces first (`search.nodes_of`)."""
        return False

    @abstractmethod
    def advance(self, search: "PlanSearch") -> Step["Node"]:
        """Search some of the plans below the node; return the nodes that are left."""

    def learn(self, report: Report[Any]) -> bool:
        """Raise the bound to the report's; return False if the report proves the node infeasible.

        Raises
        ------
        KeyboardInterrupt
            If the user interrupted the solver: the search ends as well.
        """
        if report.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt
        if report.status is Status.INFEASIBLE:
            return False
        self.bound = max(self.bound, report.bound)
        return True


@dataclass(kw_only=True, eq=False)
class PlanSearch(BranchAndBound[Node, EvaluatedPlan]):
    """The state of one search. ``limits`` and ``on_progress`` are those of `BranchAndBound`.

    Attributes
    ----------
    cluster_of : callable
        ``cluster_of(candidate)`` returns the cluster of a candidate's devices.
    backend : {'cpsat', 'cbc', 'exact'}
        Solver of the partition problems.
    outside : callable
        ``outside(evaluated)`` returns why a plan lies outside the searched space; None if it lies inside.
    pace : Pace
    improver : Improver or None
        The local search around the plans found.
    helper : Helper or None
        Advances nodes beside this search.
    whole : float or None
        Seconds of the search that this one is a part of.
    unaffordable : float or None
        Least seconds of a plan that was skipped for lack of time to simulate and check it.
    unopened : int or None
        A lower bound on the plans that are in none of the nodes; None if there are no such plans.
    parts : dict of str to int
        The bound of each of `Node.parts` so far.
    improved : float
        Seconds from the beginning to the best plan.
    for_first_plans : dict of tuple of int to float
        Seconds that nodes spent which only find plans, by `Node.teams`.
    """

    cluster_of: Callable[[Candidate], Cluster]
    backend: str = "cpsat"
    outside: Callable[[EvaluatedPlan], str | None] = lambda _: None
    pace: Pace = field(default_factory=Pace)
    improver: Improver | None = None
    helper: Helper | None = None
    whole: float | None = None
    unaffordable: float | None = None
    unopened: int | None = None
    parts: dict[str, int] = field(default_factory=dict, init=False)
    improved: float = field(default=0.0, init=False)
    for_first_plans: dict[tuple[int, ...], float] = field(default_factory=lambda: defaultdict(float), init=False)
    _in_vain: dict[tuple[int, ...], float] = field(default_factory=lambda: defaultdict(float), init=False)
    _early: list[tuple[tuple[int, ...], int, int, Node]] = field(default_factory=list, init=False)
    _early_bounds: list[tuple[int, int]] = field(default_factory=list, init=False)
    _taken: set[int] = field(default_factory=set, init=False)
    _late: bool = field(default=True, init=False)
    _deferred: list[Node] = field(default_factory=list, init=False)
    _least_deferred: int | None = field(default=None, init=False)
    _reserve: float = field(default=0.0, init=False)
    _best: dict[str, EvaluatedPlan] = field(default_factory=dict, init=False)
    _seen: set[Hashable] = field(default_factory=set, init=False)

    @property
    def open(self) -> int:
        """Number of open nodes, without deferred ones."""
        return len(self._heap) + len(self._early) + (0 if self.helper is None else len(self.helper.away))

    @property
    def rest(self) -> float:
        """Seconds until the limit."""
        return super().left

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return self.limits.time - self.rest

    @property
    def left(self) -> float:
        """Seconds of this run; the time after it is for the result, and for ``reserve``."""
        finish = self.pace.finish(self.incumbent.candidate) if self.incumbent is not None else 0.0
        return self.rest - self._reserve - max(finish - SLACK, 0.0)

    @property
    def tried(self) -> list[EvaluatedPlan]:
        """The best plan under each label, best first."""
        return sorted(self._best.values(), key=lambda evaluated: evaluated.value)

    def ranking(self, most: int = 5) -> tuple[tuple[str, int], ...]:
        """Labels and values of the best plans in `tried`."""
        return tuple((evaluated.label, evaluated.value) for evaluated in self.tried[:most])

    def bounds_by_part(self) -> tuple[tuple[str, int], ...]:
        """Names and bounds of `parts`, no bound above the value or below that of the search, the least first."""
        least, most = self.bound, UNLIMITED if self.value is None else self.value
        bounds = ((name, min(max(bound, least), most)) for name, bound in self.parts.items())
        return tuple(sorted(bounds, key=lambda part: part[1]))

    def affords(self, candidate: Candidate) -> bool:
        """Return True if there is time to simulate, write and check a plan of this candidate."""
        needed = self.pace.simulate(candidate) + self.pace.finish(candidate)
        if needed <= self.rest + SLACK and small_enough(candidate):
            return True
        self.unaffordable = min(needed, self.unaffordable or needed)
        return False

    def precise(self, time: float) -> Limits:
        """Limits for one solve of ``time`` seconds."""
        return Limits(time, ACCURACY * self.limits.gap, self.limits.workers, self.limits.seed)

    def negligible(self, bound: int) -> bool:
        """Return True if plans of this bound may hardly be better, and others that were left are bounded by no more."""
        little = self.value is not None and self.value - bound <= NEGLIGIBLE * self.value
        return little and self._rest is not None and self._rest <= bound

    def submit(self, evaluated: EvaluatedPlan) -> None:
        """Record a simulated plan, unless it lies outside the searched space; the best one is the incumbent."""
        if self.outside(evaluated) is not None:
            return
        known = self._best.get(evaluated.label)
        if known is None or evaluated.value < known.value:
            self._best[evaluated.label] = evaluated
        self.improve(evaluated, evaluated.value)
        if self.improver is not None and evaluated.candidate.laid is None:  # its moves are of stages with own devices
            self.improver.offer(evaluated)

    def improve(self, solution: EvaluatedPlan, value: int) -> None:
        """Make a plan the incumbent if it is better, and note when."""
        if self.value is None or value < self.value:
            self.improved = self.spent
        super().improve(solution, value)

    def hint(self, hint: Sent) -> None:
        """Tell the local search beside this search what may lead to better plans, if it has nothing else to do."""
        if self.improver is not None and self.helper is None:
            self.improver.sends(hint)

    def submit_all(self, candidates: Iterable[Candidate], boundaries: Boundaries) -> None:
        """Simulate a partition under the candidates that it fits and whose bounds lie below the incumbent.

        In addition 1F1B is tried with as many micro-batches in flight as fit, up to SO's and beyond. Where bounds tie,
        candidates that hold least come first.
        """
        fitting = [candidate for candidate in candidates if candidate.fits(boundaries)]
        others = [other for each in fitting for other in each.with_more_in_flight(self.cluster_of(each), boundaries)]
        every = {(each.family.name, each.in_flight): each for each in (*fitting, *others)}
        promising = [(each.problem.evaluate(boundaries), sum(each.in_flight), key) for key, each in every.items()]
        for bound, _, key in sorted(promising):
            if self.value is not None and bound >= self.value:
                return
            if self.affords(every[key]):
                with self.pace.simulating(every[key]):
                    evaluated = evaluate(self.cluster_of(every[key]), every[key], boundaries)
                self.submit(evaluated)

    def is_new(self, tried: Hashable) -> bool:
        """Return True the first time that something is about to be tried."""
        new = tried not in self._seen
        self._seen.add(tried)
        return new

    def defer(self, node: Node) -> None:
        """Set a node aside until `resume`; its bound still counts."""
        self._deferred.append(node)
        least = self._least_deferred
        self._least_deferred = node.bound if least is None else min(node.bound, least)

    def resume(self) -> None:
        """Open all deferred nodes, and from now on late ones at once."""
        self._late = False
        while self._deferred:
            self.push(self._deferred.pop())
        self._least_deferred = None

    @contextmanager
    def late_too(self) -> Iterator[None]:
        """Open the late nodes that were set aside, and those that follow from them at once, for a while."""
        late, self._deferred = self._deferred, []
        self._late, self._least_deferred = False, None
        for node in late:
            (self.push if node.turn is Turn.LATE else self.defer)(node)
        yield
        self._late = True

    def run(self, reserve: float = 0.0) -> None:
        """Search until the gap is closed, a limit is reached, or only ``reserve`` seconds are left."""
        self._reserve = reserve
        try:
            super().run()
            if self.stop is Stop.TIME:
                self.search_locally()
        finally:
            self._reserve = 0.0

    def find_plan(self) -> None:
        """Advance nodes until there is a plan, for at most `FOR_A_PLAN` seconds."""
        self._reserve = max(self.rest - FOR_A_PLAN, 0.0)
        try:
            while self.open and self.incumbent is None and self.left > 0:
                self.step()
        finally:
            self._reserve = 0.0

    def step(self) -> None:
        """Advance the next node, if not all are with the helper."""
        if self.helper is not None:
            self.helper.exchange(self)
        if self._heap or self._early:
            super().step()

    def to_share(self, most: int) -> list[Node]:
        """Take every second one of the first nodes that may be advanced elsewhere, at most so many; the least stays."""
        first = [heapq.heappop(self._heap) for _ in range(min(3 * most, len(self._heap)))]
        may = (entry for entry in first if entry[-1].shared and not entry[-1].begun and not self.fathoms(entry[0]))
        taken = [*may][1::2][:most]
        for entry in first:
            if not any(entry is other for other in taken):
                heapq.heappush(self._heap, entry)
        return [entry[-1] for entry in taken]

    def late_to_share(self, most: int) -> list[Node]:
        """Take the least late nodes, if the search has none that is less open."""
        least = UNLIMITED if self.least_open is None else self.least_open
        late = [node for node in self._deferred if node.shared and node.bound < least and not self.fathoms(node.bound)]
        taken = sorted(late, key=lambda node: node.bound)[:most]
        self._deferred = [node for node in self._deferred if not any(node is other for other in taken)]
        self._least_deferred = min((node.bound for node in self._deferred), default=None)
        return taken

    @property
    def least_open(self) -> int | None:
        """The least bound of nodes that are open here; None if none are."""
        return min([*(entry[0] for entry in self._heap[:1]), *self._least_early], default=None)

    @property
    def waits(self) -> bool:
        """Whether late nodes are set aside."""
        return self._late

    def leave(self, bound: int | None, parts: Mapping[str, int]) -> None:
        """Note the least bound of nodes that were closed elsewhere, if some were, and bounds of parts."""
        if bound is not None:
            self._leave(bound)
        for name, own in parts.items():
            self.parts[name] = max(own, self.parts.get(name, 0))

    def advance(self, node: Node) -> Step[Node]:
        """One step of a node; one that the time limit ends keeps its bound."""
        began = self.spent
        try:
            with ending(time.monotonic() + self.rest):
                step = node.advance(self)
        except OutOfTime:
            step = Step.leave(node.bound)
        if self.incumbent is None and node.teams:
            self._in_vain[node.teams] += self.spent - began
        excluded = step.rest is None and not step.nodes
        self._note(node, UNLIMITED if excluded else node.bound)
        if not self._early or self.spent > FIRST_PLANS:
            self.search_locally()
        return step

    def search_locally(self) -> None:
        """Submit the plans that the local search has found; end it once no plan can be noticeably better."""
        if self.improver is None:
            return
        for plan in self.improver.better(time.monotonic() + self.left):
            self.submit(plan)
        if self.value is not None and self.value - self.bound <= NEGLIGIBLE * self.value:
            self.improver.close()
            self.improver = None

    def push(self, node: Node) -> None:
        """Open a node, fathom it, or set it aside."""
        if self._late and node.turn is Turn.LATE and not self.fathoms(node.bound):
            self.defer(node)
            return
        super().push(node)
        self._note(node, node.bound)

    def _note(self, node: Node, bound: int) -> None:
        for name in node.parts:
            self.parts[name] = max(bound, self.parts.get(name, 0))

    def _bounds(self) -> Iterator[int]:
        yield from super()._bounds()
        yield from [] if self.unopened is None else [self.unopened]
        yield from self._least_early
        yield from [self.helper.bound] if self.helper is not None and self.helper.away else []
        yield from [] if self._least_deferred is None else [self._least_deferred]

    @property
    def _least_early(self) -> list[int]:
        """The least bound of early nodes, if there are any; what was taken from them leaves the heap here only."""
        while self._early_bounds and self._early_bounds[0][1] in self._taken:
            self._taken.remove(heapq.heappop(self._early_bounds)[1])
        return [bound for bound, _ in self._early_bounds[:1]]

    def _insert(self, node: Node) -> None:
        if self._is_early(node):
            heapq.heappush(self._early, ((node.bound.bit_length(), *node.rank), node.bound, self._pushed, node))
            heapq.heappush(self._early_bounds, (node.bound, self._pushed))
        else:
            super()._insert(node)

    def _next(self) -> Node:
        while self._early:
            _, _, number, node = heapq.heappop(self._early)
            self._taken.add(number)
            if self._is_early(node) or not (self._heap or self._early):
                return node
            self.push(node)
        return super()._next()

    def _is_early(self, node: Node) -> bool:
        if self.value is not None:  # a search that only bounds knows one without a plan
            return node.turn is Turn.EARLY
        return node.turn in (Turn.EARLY, Turn.UNTIL_A_PLAN) and self._in_vain[node.teams] < FOR_A_PLAN
