"""Local search from several plans: climbs on the same device groups, and steps to other groups.

A *climb* is a late acceptance hill climb: a neighbour replaces the current plan if it takes no longer than that one, or
than the one that was current some tries ago. So it leaves small hills, without a temperature to choose (Burke and
Bykov, European Journal of Operational Research 258, 2017; from memory).

Other groups need other boundaries and in-flight counts before one can tell whether they are better. So a plan for them
starts from a balanced partition, and begins a climb of its own. The most promising climb continues. Many climbs of one
space may be as good as each other: the longer none of them finds anything, the sooner other spaces have their turn. And
the longer nothing is better at all, the longer a climb goes on at once.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise, takewhile
from math import inf, lcm, log2
from random import Random

from pipeplan.baselines.deadline import OutOfTime, check_deadline
from pipeplan.core.job import WHOLLY_SHARDED
from pipeplan.core.splits import Split, Splitting
from pipeplan.costs.chain import Boundaries
from pipeplan.search.evaluate import EvaluatedPlan, evaluate, follows_recurrence, least_value
from pipeplan.search.local_search.moves import Moves, Placement, even_modes, rising_modes
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.device_groups import Modes
from pipeplan.search.space.outside import unable, unasked
from pipeplan.search.space.space import Key, Space
from pipeplan.search.space.spaces import Spaces
from pipeplan_formulations.partition import balanced

MEMORY = 60
"""Tries after which a value is forgotten."""
SLICE = 50
"""Tries of one climb at once,"""
LONGER, LONGEST = 8, 4
"""and as many again for each so many slices in vain, up to so many times as many: most of a slice's time goes to other
groups, and once these lead nowhere, what is left to find is found on known ones."""
WORSE = 0.002
"""A climb waits behind those up to this much worse for each slice that did not improve its best plan, and for each of
its space that did not improve the best one there."""
NEARS, RISING, EVEN, WAYS = 4, 6, 8, 3
"""Groups near those of the climb that are tried before each slice, and those of rising numbers of replicas, as long as
there are some; most equal ones among which one is sought that fits; other ways to split layers over the same teams."""
RESTART = 20
"""Slices without improvement after which a climb starts again from its best plan."""
PROMISING = 1.05
"""Other groups begin a climb if their first plan takes at most this many times as long as the best plan."""
PINNED = 8
"""Other groups are tried with pinned devices on at most this many choices of stages."""
MOST_PAIRS = 2**16
"""Most pairs of replicas of two neighbours of other groups: to price more takes seconds."""
MOST_SEEN = 2**16
"""Values that are kept for plans that were tried."""

Groups = tuple[Space, Placement, int]
"""Device groups of a space, and a micro-batch size."""
Start = tuple[Space, Candidate, Boundaries]
Idea = Callable[[int], Iterable[Start]]
"""Where to start from to find plans that are better than a value."""


@dataclass
class _Climb:
    """One climb: ``plan`` is the current plan, ``idle`` counts the slices since ``best`` was found.

    ``near``: groups that differ by one step and were not tried from here yet.
    """

    plan: EvaluatedPlan
    best: EvaluatedPlan
    placement: Placement
    moves: Moves
    near: Iterator[Placement]
    idle: int = 0
    number: int = 0
    past: list[int] = field(default_factory=list)

    def restart(self) -> None:
        """Continue from the best plan."""
        self.plan, self.past = self.best, [self.best.value] * MEMORY


@dataclass
class _Even:
    """Equal groups that were not tried yet; ``begun`` counts how often the time was over before they were."""

    bound: int
    space: Space
    modes: Modes
    size: int
    begun: int = 0

    def far(self, plan: EvaluatedPlan) -> float:
        """Distance from a plan: in level, kind of the first devices, and doublings of replicas and micro-batch size."""
        priced, first = plan.candidate.chain, self.modes[0]
        replicas = log2(first.replicas * priced.stages / sum(priced.replicas))
        level, size = self.space.job.level - priced.zero, log2(self.size / priced.micro_batch)
        other = self.space.classes[first.device_class].kind.name != priced.groups[0][0].kind.name
        return abs(replicas) + abs(level) + abs(size) + other


class LocalSearch:
    """Local search over spaces, from all plans that it was given; a climb keeps its way and its level of ZeRO."""

    def __init__(self, spaces: Spaces, seed: int = 0) -> None:
        self._random = Random(int(seed))
        self._spaces = spaces
        self._moves: dict[Key, Moves] = {}
        self._climbs: dict[tuple[Hashable, ...], _Climb] = {}
        self._vain: Counter[Key] = Counter()  # slices since the best plan of a space
        self._all_vain = 0  # slices since the best plan
        self._latest = inf  # its value
        self._other_ways: Counter[Key] = Counter()  # groups of other ways that were tried in a space
        self._ideas: dict[Hashable, Idea] = {}
        self._tried: set[Hashable] = set()
        self._regrouped: set[tuple[object, ...]] = set()
        self._even: dict[tuple[Splitting | None, int], list[_Even]] = {}
        self._near = False
        self._rising: dict[tuple[Hashable, int], Iterator[Groups]] = {}
        self._seen: dict[tuple[object, ...], EvaluatedPlan | None] = {}

    @property
    def ready(self) -> bool:
        """True if there is a plan to start from."""
        return bool(self._climbs)

    @property
    def least(self) -> int:
        """The value of the best plan."""
        return self._best.value

    @property
    def _best(self) -> EvaluatedPlan:
        return min((each.best for each in self._climbs.values()), key=lambda plan: plan.value)

    def _better(self, value: int) -> EvaluatedPlan | None:
        """The best plan, if it is better than a value."""
        return self._best if self._best.value < value else None

    def add(self, plan: EvaluatedPlan) -> None:
        """Climb from this plan too, unless one on the same groups, with the same micro-batches, is as good."""
        priced, space = plan.candidate.chain, self._spaces.of(plan.candidate)
        if space.key not in self._moves:  # a mix may be new
            self._moves[space.key] = Moves(space, self._random)
        moves = self._moves[space.key]
        placement = Placement.of(moves.space, priced.groups)
        groups = tuple(tuple(device.index for device in group) for group in priced.groups)
        key = groups, priced.micro_batch, *space.key
        known = self._climbs.get(key)
        if known is None or plan.value < known.best.value:
            self._regrouped.add((placement, priced.micro_batch, *space.key))
            near = moves.near(placement) if known is None else known.near
            self._climbs[key] = climb = _Climb(plan, plan, placement, moves, near)
            climb.restart()

    @property
    def has_ideas(self) -> bool:
        """True if there are ideas that were not tried yet."""
        return bool(self._ideas)

    def consider(self, key: Hashable, idea: Idea) -> None:
        """Keep an idea to be tried before those that are known, unless it was tried."""
        self._ideas.pop(key, None)
        if key not in self._tried:
            self._ideas[key] = idea

    def try_idea(self) -> EvaluatedPlan | None:
        """Begin climbs from the idea that came last; return a plan that is better than all before."""
        before = self.least
        key, idea = self._ideas.popitem()
        self._tried.add(key)
        for start in idea(before):
            plan = _judged(*start, int(PROMISING * before), self.least)
            if plan is not None:
                self.add(plan)
        return self._better(before)

    def improve(self, tries: int | None = None, ends: Callable[[], bool] = lambda: False) -> EvaluatedPlan | None:
        """Continue the most promising climb, and try other groups; return a plan that is better than all before.

        ``tries``: of the climb; as many as suit the slices in vain if None. It ends early once ``ends`` is true, or at
        the deadline that is set (`pipeplan.baselines.deadline`).
        """
        before = self.least
        self._all_vain = self._all_vain + 1 if before == self._latest else 0
        self._latest = before
        if tries is None:
            tries = SLICE * min(1 + self._all_vain // LONGER, LONGEST)
        climb = min(self._climbs.values(), key=self._priority)
        key, own = climb.moves.space.key, climb.best.value
        there = self._least(key)
        with suppress(OutOfTime):
            for groups in chain(islice(self._ways_from(climb), WAYS), islice(self._rising_from(climb), RISING)):
                self._begin(*groups, before)
            near = all(self._begin_near(climb, before) for _ in range(NEARS) if not ends())
            for begun in (near, self._begin_evenly(climb, before)):
                if not begun and not ends():
                    size = climb.best.candidate.chain.micro_batch
                    self._begin(climb.moves.space, *climb.moves.regrouped(climb.placement, size), before)
            for _ in takewhile(lambda _: not ends(), range(tries)):
                self._try(climb)
        climb.idle = 0 if climb.best.value < own else climb.idle + 1
        self._vain[key] = 0 if self._least(key) < there else self._vain[key] + 1
        if climb.idle and climb.idle % RESTART == 0:
            climb.restart()
        return self._better(before)

    def _priority(self, climb: _Climb) -> float:
        """The climb of the least continues."""
        return climb.best.value * (1 + WORSE * (climb.idle + self._vain[climb.moves.space.key]))

    def _least(self, key: Key) -> int:
        """The value of the best plan of a space."""
        return min(each.best.value for each in self._climbs.values() if each.moves.space.key == key)

    def _try(self, climb: _Climb) -> None:
        """One neighbour on the same groups."""
        neighbour = climb.moves.small(climb.plan)
        if neighbour is None:
            return
        place = climb.number % MEMORY
        climb.number += 1
        most = max(climb.plan.value, climb.past[place])
        plan = self._evaluated(climb.moves.space, climb.placement, *neighbour, most, climb.best.value)
        if plan is not None and plan.value <= most:
            climb.plan = plan
            if plan.value < climb.best.value:
                climb.best = plan
        climb.past[place] = climb.plan.value

    def _rising_from(self, climb: _Climb) -> Iterator[Groups]:
        """Groups of rising numbers of replicas in the space of a climb that were not tried yet."""
        space, size = climb.moves.space, climb.best.candidate.chain.micro_batch
        if (space.key, size) not in self._rising:
            rows = rising_modes(space, self._random)
            self._rising[space.key, size] = ((space, Placement(modes), size) for modes in rows)
        return self._rising[space.key, size]

    def _ways_from(self, climb: _Climb) -> Iterator[Groups]:
        """The groups of a climb in other ways to split layers over equal teams that were not tried yet.

        Those come first that other groups were tried in least, then the best: a search finds plans of few ways first,
        and which one is best depends on the groups.
        """
        own, size, modes = climb.moves.space, climb.best.candidate.chain.micro_batch, climb.placement.modes
        if not isinstance(own.split, Split) or modes is None:
            return
        others = []
        for split in self._spaces.teams:
            if isinstance(split, Split) and split.sizes == own.split.sizes:
                space = self._spaces.find(split, own.job.level, own.model.slices)
                if space is not None and (climb.placement, size, *space.key) not in self._regrouped:
                    stages = [(space.classes[mode.device_class].kind.name, mode.replicas) for mode in modes]
                    bound = space.lower_bounds(size).of_stages(stages)
                    others.append((self._other_ways[space.key], bound, split.number, space))
        for *_, space in sorted(others, key=lambda each: each[:3]):
            self._other_ways[space.key] += 1
            yield space, climb.placement, size

    def _begin_near(self, climb: _Climb, best: int) -> bool:
        """Begin a climb on groups that differ by one step; return False if none is left."""
        near = next(climb.near, None)
        if near is not None:
            self._begin(climb.moves.space, near, climb.best.candidate.chain.micro_batch, best)
        return near is not None

    def _begin_evenly(self, climb: _Climb, best: int) -> bool:
        """Begin a climb on equal groups; return False if none is left.

        In turn those nearest to the best plan of this climb, and those of least bound.
        """
        space = climb.moves.space
        key = space.split, space.model.slices
        if key not in self._even:
            self._even[key] = list(self._every_even(space))
        every = self._even[key]
        self._near = not self._near
        for _ in range(min(EVEN, len(every))):
            even = min(every, key=lambda each: (each.begun + self._near * each.far(climb.best), each.bound))
            even.begun += 1
            fits = self._begin(even.space, Placement(even.modes), even.size, best)
            every.remove(even)
            if fits:
                break
        return bool(every)

    def _begin(self, space: Space, placement: Placement, size: int, best: int) -> bool:
        """Begin a climb on other groups, if a balanced partition of them is promising; return True if one fits."""
        key = placement, size, *space.key
        if placement.modes is None or key in self._regrouped:
            return False
        arranged = space.placing.arranged(placement.modes, placement.tile)
        widest, deep = max(mode.replicas for mode in placement.modes), len(placement.modes)
        if arranged is None or widest > space.job.batch // size or deep > len(space.model.layers):
            return False
        if unable(space, tuple(map(len, arranged)), space.job.batch // size) is not None:
            return False
        if any(lcm(a.replicas, b.replicas) > MOST_PAIRS for a, b in pairwise(placement.modes)):
            return False
        fits = False
        every = islice(space.placing.with_pins(arranged), PINNED)
        for candidate in chain.from_iterable(space.candidates(groups, size, free=False) for groups in every):
            check_deadline()
            balances = candidate.family.alternates or candidate.chain.slices > 1
            boundaries = balanced(candidate.problem, int(PROMISING * best)) if balances else None
            if boundaries is None:
                continue
            fits = True
            for each in (candidate, *candidate.with_more_in_flight(space.cluster, boundaries)):
                plan = self._evaluated(space, placement, each, boundaries, int(PROMISING * best), best)
                if plan is not None:
                    self.add(plan)
        self._regrouped.add(key)  # not of groups for which the time was over
        return fits

    def _every_even(self, own: Space) -> Iterator[_Even]:
        """Yield equal groups at each level of ZeRO and micro-batch size.

        The plans that a search finds first may all be of a level that has few others.
        """
        levels = (self._spaces.find(own.split, level, own.model.slices) for level in range(WHOLLY_SHARDED + 1))
        for space in filter(None, levels):
            for modes in even_modes(space):
                stages = [(space.classes[mode.device_class].kind.name, mode.replicas) for mode in modes]
                for size in space.sizes:
                    yield _Even(space.lower_bounds(size).of_stages(stages), space, modes, size)

    def _evaluated(
        self,
        space: Space,
        placement: Placement,
        candidate: Candidate,
        boundaries: Boundaries,
        most: int,
        best: float = inf,
    ) -> EvaluatedPlan | None:
        """The plan; None if it is not in the space, does not fit, or has a value above ``most``.

        Its value may be a lower bound, if that is at least ``best``.
        """
        priced = candidate.chain
        own = priced.split, priced.zero, priced.slices, priced.micro_batch, candidate.family.name, candidate.in_flight
        key = placement, tuple(device.index for device in priced.devices), own, boundaries
        if key not in self._seen:
            check_deadline()
            if len(self._seen) >= MOST_SEEN:
                self._seen.clear()
            self._seen[key] = _judged(space, candidate, boundaries, most, best)
        return self._seen[key]


def _judged(space: Space, candidate: Candidate, boundaries: Boundaries, most: int, best: float) -> EvaluatedPlan | None:
    cluster = space.cluster
    if unasked(space, candidate, boundaries) is not None or not candidate.fits(boundaries):
        return None
    least, exact = candidate.problem.evaluate(boundaries), follows_recurrence(candidate)
    if least <= most and exact:
        least = least_value(cluster, candidate, boundaries)
    if least > most:
        return None
    if best <= least and exact:  # very close to its value
        return EvaluatedPlan(cluster, candidate, boundaries, least)
    return evaluate(cluster, candidate, boundaries)
