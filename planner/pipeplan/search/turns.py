"""A heuristic's turn: its proposals, bounded one by one and simulated in the order of their bounds."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush

from pipeplan.baselines.deadline import OutOfTime
from pipeplan.baselines.partitioners import PARTITIONERS
from pipeplan.baselines.planners import PLANNERS
from pipeplan.costs.chain import UNLIMITED, Boundaries
from pipeplan.search.evaluate import EvaluatedPlan, Pace, evaluate, overflow, peaks
from pipeplan.search.proposals import Proposal, Proposals, homes
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces

LATE = "the time was over before its turn"
CUT_SHORT = "the time was over before all that it proposes was simulated"
SHORT = "the time does not suffice for its own computation"
LONG = "the time does not suffice to simulate this number of micro-batches"
"""Reasons why a heuristic has no plan, or not its best one, although it may have one."""
NOT_ASKED = (LATE, CUT_SHORT, SHORT, LONG)
"""Reasons that leave open whether the heuristic has a plan."""
CHEAP = 0.1
"""Seconds of a heuristic's own computation that never count as too long."""
FIRST_GUESS, TRIED = 0.02, 2
"""Seconds to make and bound the proposals of a micro-batch size, until they are measured, and how many are tried until
a plan fits, mostly."""


KEPT = 2**17
"""Most candidates x stages x layers that are kept for other heuristics."""

Priced = tuple[bool, int, int]
"""Whether a plan lies outside the searched space, its bound, and the micro-batches that its stages hold."""


@dataclass(frozen=True)
class Baseline:
    """A heuristic's best plan, a lower bound on it where it was not simulated, or the reason why it has none.

    Attributes
    ----------
    name : str
    evaluated : EvaluatedPlan or None
    why : str
        The reason why there is no plan, or why not all that the heuristic proposes was simulated.
    outside : str
        Why the plan lies outside the searched space, if it does. Such a plan is only shown.
    bound : int or None
        Nanoseconds that every plan of the heuristic takes at least, if it has plans that fit and none was simulated.
    bounded : str
        Label of the plan with this bound.
    """

    name: str
    evaluated: EvaluatedPlan | None
    why: str = ""
    outside: str = ""
    bound: int | None = None
    bounded: str = ""

    @property
    def value(self) -> int | None:
        """Nanoseconds; None without a simulated plan."""
        return None if self.evaluated is None else self.evaluated.value

    @property
    def untried(self) -> bool:
        """Whether nothing is known of its plans: neither one, nor a bound, nor that none fits."""
        return self.evaluated is None and self.bound is None and self.why in NOT_ASKED

    @property
    def label(self) -> str:
        """Depth, micro-batches and family of the plan, for users."""
        return self.bounded if self.evaluated is None else self.evaluated.label

    @property
    def peaks(self) -> tuple[int, ...]:
        """Peak bytes of each device."""
        return () if self.evaluated is None else peaks(self.evaluated)


class _Reason:
    """The reason why a heuristic has no plan: that of its first proposal, which has the smallest micro-batches."""

    def __init__(self) -> None:
        self._first: str | Callable[[], str | None] | None = None

    def add(self, text: str | Callable[[], str | None]) -> None:
        """Set the reason, if it is the first one."""
        if self._first is None:
            self._first = text

    @property
    def text(self) -> str:
        """The reason as text."""
        if self._first is None:
            return "the job does not allow one device per stage"
        return self._first if isinstance(self._first, str) else self._first() or ""


@dataclass(frozen=True, order=True)
class _Open:
    """A plan that fits, or a micro-batch size whose proposals are not made yet (``proposal`` is None).

    The order is that of lower bounds; then come those that hold fewer micro-batches. Plans outside the searched space
    are last. ``family`` is the position among the candidates of the proposal.
    """

    beyond: bool
    bound: int
    held: int
    number: int
    size: int
    proposal: Proposal | None = field(default=None, compare=False)
    family: int = field(default=0, compare=False)


@dataclass
class Turn:
    """A heuristic, the heap of what is open, and its best plan.

    Attributes
    ----------
    families : tuple of str
        Families that it runs; empty if all.
    free : bool
        Whether it also runs 1F1B with other in-flight counts.
    inside : bool
        Whether a plan within the searched space fits.
    late : str
        The reason why something was left open.
    begun : bool
        Whether its micro-batch sizes are open.
    """

    name: str
    families: tuple[str, ...] = ()
    free: bool = True
    why: _Reason = field(default_factory=_Reason)
    waiting: list[_Open] = field(default_factory=list)
    best: EvaluatedPlan | None = None
    inside: bool = False
    late: str = ""
    begun: bool = False

    def may_gain(self, entry: _Open) -> bool:
        """Return True if an entry may be better than the best plan; plans outside the space count if no other fits."""
        return not (entry.beyond and self.inside) and (self.best is None or entry.bound < self.best.value)


class Judge:
    """Bounds and simulations of plans; equal plans of several heuristics are simulated once."""

    def __init__(
        self, spaces: Spaces, report: Callable[[EvaluatedPlan], None], pace: Pace, proposals: Proposals
    ) -> None:
        self.spaces, self.report, self.pace, self.proposals = spaces, report, pace, proposals
        self.space = spaces.lowest
        self._simulated: dict[tuple[object, ...], EvaluatedPlan] = {}
        self._known: dict[tuple[object, ...], _Known] = {}
        self._kept = 0
        self.turns = list(every_turn(self.space))
        self._spent, self._count = FIRST_GUESS, 1
        proposals.begin(spaces)

    def bound_all(self, until: Callable[[], float]) -> Iterator[Turn]:
        """Bound the heuristics' best plans, as long as there is time; yield each of them then."""
        for turn in self.turns:
            if time.monotonic() >= until():
                turn.late = LATE
            else:
                self.bound(turn, until())
            yield turn

    def _begin(self, turn: Turn) -> None:
        """Open all micro-batch sizes, each with a bound on every plan that the heuristic may propose, once."""
        if turn.begun:
            return
        turn.begun = True
        if turn.families and not set(turn.families) & set(self.space.schedules):
            turn.why.add(f"it runs {' or '.join(turn.families)} only")
        groups, own = () if turn.name in PLANNERS else self.space.single_device_groups, self._own(turn)
        if not own:
            turn.why.add("no team that splits layers along one axis is searched")
            return
        for number, size in enumerate(self.space.sizes):
            least = min(space.lower_bounds(size).of_any(space.cluster) for space in own)
            if groups:
                least = max(least, self.space.lower_bounds(size).of_stages((g[0].kind.name, 1) for g in groups))
            heappush(turn.waiting, _Open(False, least, UNLIMITED, number, size))

    def _own(self, turn: Turn) -> tuple[Space, ...]:
        """The spaces in which a heuristic proposes plans; of several levels the first one's bounds hold."""
        planner = PLANNERS.get(turn.name)
        return homes(self.spaces) if planner is not None and planner.splits else (self.space,)

    def bound(self, turn: Turn, until: float) -> None:
        """Make proposals until the least bound is that of a plan that fits, or none is left."""
        self._begin(turn)
        while turn.waiting and turn.waiting[0].proposal is None and self._made(turn, until):
            pass

    def _made(self, turn: Turn, until: float) -> bool:
        """Make and bound the proposals of the first micro-batch size; False if there is no time for that."""
        size, began = turn.waiting[0].size, time.monotonic()
        bounding = (self._spent - FIRST_GUESS) / self._count  # nothing before it is measured
        if began + self.proposals.seconds(self.spaces, turn.name, size) + bounding > until:
            turn.late = CUT_SHORT if began > until and turn.late != SHORT else SHORT
            return False
        try:
            proposals = self.proposals.of(self.spaces, turn.name, size, until)
        except OutOfTime:
            turn.late = SHORT
            return False
        heappop(turn.waiting)
        for proposal in proposals:
            if isinstance(proposal, str):
                turn.why.add(proposal)
                continue
            for family, (beyond, bound, held) in self._holding(turn, proposal):
                heappush(turn.waiting, _Open(beyond, bound, held, len(turn.waiting), size, proposal, family))
                turn.inside = turn.inside or not beyond
        self._spent, self._count = self._spent + time.monotonic() - began, self._count + 1
        return True

    def computes(self, turn: Turn) -> float:
        """Approximate seconds in which the heuristic itself makes its next proposal."""
        size = min((entry.size for entry in turn.waiting[:1]), default=self.space.sizes[0])
        return self.proposals.seconds(self.spaces, turn.name, size)

    def takes(self, turn: Turn) -> float:
        """Approximate seconds to one plan of a heuristic: the first of a few micro-batch sizes that fits."""
        left = sum(entry.proposal is None for entry in turn.waiting) if turn.begun else len(self.space.sizes)
        simulation = self.pace.largest(self.space.job.batch // self.space.sizes[0], self.space.deepest)
        return min(left, TRIED) * self._spent / self._count + self.computes(turn) + simulation

    def first_plan(self, turn: Turn, until: float, last: float, affords: Callable[[Candidate, int], bool]) -> None:
        """Make proposals until one fits, and simulate it.

        The heuristic's own computation ends by ``until``, or by ``last`` if it is estimated to be cheap.
        """
        self._begin(turn)
        while turn.waiting and turn.best is None:
            if turn.waiting[0].proposal is not None:
                self._simulate(turn, last, affords)
                return
            if not self._made(turn, last if self.computes(turn) <= CHEAP else until):
                turn.late = SHORT
                return

    def _holding(self, turn: Turn, proposal: Proposal) -> Iterator[tuple[int, Priced]]:
        """Yield the positions of the candidates under which a proposal fits, each with what it is worth there."""
        known = self._known_candidates(turn, proposal)
        own = [
            (family, candidate)
            for family, candidate in enumerate(known.candidates)
            if len(proposal.rows) == 1 or not turn.families or candidate.family.name in turn.families
        ]
        if not own:
            runs = (
                f"it runs {' or '.join(turn.families)} only" if turn.families else "its level of ZeRO is not searched"
            )
            turn.why.add(runs)
        refused: list[Candidate] = []
        for family, candidate in own:
            if any(_needs_more(candidate, other) for other in refused):
                continue
            priced = known.priced(family, proposal.boundaries, self.spaces)
            if priced is not None:
                yield family, priced
            else:
                refused.append(candidate)
                turn.why.add(partial(overflow, candidate, proposal.boundaries))

    def simulate(
        self, turn: Turn, until: float, affords: Callable[[Candidate, int], bool], below: int | None, skip: bool
    ) -> None:
        """Simulate plans in the order of their bounds, while one may be faster than the best one and than ``below``.

        ``affords(candidate, bound)`` returns True if there is time for it; else the next one is tried if ``skip``.
        """
        skipped: list[_Open] = []
        while turn.waiting and turn.may_gain(turn.waiting[0]) and (below is None or turn.waiting[0].bound < below):
            if turn.waiting[0].proposal is None:
                if self._made(turn, until):
                    continue
                break
            if not self._simulate(turn, until, affords):
                if turn.late == CUT_SHORT or not skip:
                    break
                skipped.append(heappop(turn.waiting))
        for entry in skipped:
            heappush(turn.waiting, entry)

    def _simulate(self, turn: Turn, until: float, affords: Callable[[Candidate, int], bool]) -> bool:
        """Simulate the first plan that waits, unless it is known; False if there is no time for it."""
        first = turn.waiting[0]
        assert first.proposal is not None
        candidate = self._candidates(turn, first.proposal)[first.family]
        key = (
            first.proposal,
            candidate.family.name,
            candidate.in_flight,
            candidate.chain.overlaps,
            candidate.chain.zero,
        )
        if key not in self._simulated:
            if time.monotonic() >= until:
                turn.late = CUT_SHORT
                return False
            if not affords(candidate, first.bound):
                turn.late = LONG
                return False
            with self.pace.simulating(candidate):
                self._simulated[key] = evaluate(self.spaces.cluster_of(candidate), candidate, first.proposal.boundaries)
            self.report(self._simulated[key])
        heappop(turn.waiting)
        if turn.best is None or self._simulated[key].value < turn.best.value:
            turn.best = self._simulated[key]
        return True

    def baseline(self, turn: Turn) -> Baseline:
        """The heuristic's row."""
        left = [entry for entry in turn.waiting if turn.may_gain(entry)]
        if turn.best is not None:
            return Baseline(turn.name, turn.best, turn.late if left else "", self.spaces.outside(turn.best) or "")
        first = min((entry for entry in left if entry.proposal is not None), default=None)
        if first is None or first.proposal is None:
            return Baseline(turn.name, None, turn.late if left or turn.late == LATE else turn.why.text)
        candidate = self._candidates(turn, first.proposal)[first.family]
        beyond = self.spaces.unasked(candidate, first.proposal.boundaries) or ""
        return Baseline(turn.name, None, turn.late, beyond, min(entry.bound for entry in left), candidate.label)

    def _candidates(self, turn: Turn, proposal: Proposal) -> list[Candidate]:
        """The candidates of a proposal's devices and micro-batch size, one per level of ZeRO and family."""
        return self._known_candidates(turn, proposal).candidates

    def _known_candidates(self, turn: Turn, proposal: Proposal) -> "_Known":
        """The same, kept for other heuristics that propose these devices: balancers all do, and often like plans."""
        planner = PLANNERS.get(turn.name)
        overlaps, level = (True, None) if planner is None else (planner.overlaps, planner.level)
        key = proposal.rows, proposal.size, proposal.home, turn.free, overlaps, level
        if key not in self._known:
            known = _Known(self.proposals.candidates(self.spaces, proposal, turn.free, overlaps, level))
            self._kept += len(known.candidates) * len(proposal.rows) * len(self.spaces.model.layers)
            if self._kept > KEPT:
                self._known.clear()
                self._kept = 0
            self._known[key] = known
        return self._known[key]


@dataclass(frozen=True)
class _Known:
    """The candidates of some devices, and what boundaries proposed for them are worth; None where they do not fit."""

    candidates: list[Candidate]
    _worth: dict[tuple[int, Boundaries], Priced | None] = field(default_factory=dict)

    def priced(self, family: int, boundaries: Boundaries, spaces: Spaces) -> Priced | None:
        """Return the worth of boundaries under the candidate of this number."""
        if (family, boundaries) not in self._worth:
            candidate, worth = self.candidates[family], None
            if candidate.holds(boundaries):
                beyond = spaces.unasked(candidate, boundaries) is not None
                worth = beyond, candidate.problem.evaluate(boundaries), sum(candidate.in_flight)
            self._worth[family, boundaries] = worth
        return self._worth[family, boundaries]


def every_turn(space: Space) -> Iterator[Turn]:
    """Yield the heuristics in order: planners first, as they choose more, so their plans are better starts."""
    if space.job.objective.simulated:
        for name, planner in PLANNERS.items():
            yield Turn(name, planner.families, free=not planner.families)
    for name in PARTITIONERS:
        yield Turn(name, free=not space.families)


def _needs_more(candidate: Candidate, other: Candidate) -> bool:
    """Return True if the candidate needs at least as many bytes as another one on the same devices and boundaries."""
    alike = candidate.chain.zero == other.chain.zero
    lanes = candidate.family.two_lanes >= other.family.two_lanes
    return alike and lanes and all(a >= b for a, b in zip(candidate.in_flight, other.in_flight, strict=True))
