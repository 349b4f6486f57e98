"""Best-first search over prefixes of allocations, bounded by the suffix tables of the dynamic programme.

The label of a prefix is all that its completions depend on: the head H, its part R of a round trip, the largest way
back and own ending so far (*top*) and the largest e so far, the first three with E_0, and G of the own ending. Where
the last stage's sums wait for the first stage it also has E_0 and the largest way back alone. For alternation and two
phases it also has the largest forward and backward so far, and if k is a choice, the excess that later stages may have.
With V and A the suffix tables' values behind the prefix, no completion is better than

    max( top,  H + V,  R + A + e,  2 (R + A) + twice ),

*twice* being the largest (M_w − k − 1) (F + B) − R so far, of the two trips.

Of cycles between stages the label has *paces*, one for each `Rate`: the most, over the stages whose trips with a cycle
beyond the rate are not within the target, of the way from there to the prefix's end and back, less the rate for all
that the stage holds. A stage with which that becomes a cycle beyond the rate is left out. So a completion may be worse
than its label says; what is left then is searched with all cycles, and no prefix dropped (``every``).

Prefixes are opened in the order of this bound, deeper ones first if it ties. A prefix is dropped if an earlier one with
the same boundary, kind and usage is at least as good in every number of the label.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from pipeplan_formulations.allocation.best_first.transitions import LargestBackwards, Transitions, transitions
from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.place import Allocation, Place
from pipeplan_formulations.allocation.suffix_bounds.refinement import Relaxation
from pipeplan_formulations.allocation.suffix_bounds.transition_costs import Rate
from pipeplan_formulations.allocation.terms import Turn, between_trips
from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.common.span_options import IMPOSSIBLE


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first stages of an allocation, their label, and boundary, kind and (flat) usage of the next stage."""

    start: int
    kind: int
    usage: int
    position: int
    head: int
    trip: int
    top: int
    way: int
    finish: int
    ahead: int
    delay: int
    twice: int
    paces: tuple[int, ...]
    turns: tuple[Turn, ...]
    largest_forward: int
    backwards: LargestBackwards
    allowed: int
    place: Place | None
    before: "Prefix | None"

    def stages(self) -> Allocation:
        """The stages in order."""
        found, prefix = [], self
        while prefix.place is not None and prefix.before is not None:
            found.append(prefix.place)
            prefix = prefix.before
        return tuple(reversed(found))


class BestFirst:
    """Closes the bracket, or raises its lower bound; where it stopped, it goes on when it is run again.

    ``every``: count all cycles, drop no prefix for another one, and leave no gap.
    """

    def __init__(
        self, problem: ChainAllocation, bracket: Bracket[Allocation], base: Relaxation, every: bool = False
    ) -> None:
        self._problem, self._bracket, self._base, self._every = problem, bracket, base, every
        # Entries are (bound, −start, order of creation, prefix).
        self._heap: list[tuple[int, int, int, Prefix]] = []
        self._order, self._seen = count(), _Seen(len(problem.first), problem)
        self._opened = 0
        self._last: Prefix | None = None  # seen last: where the time was over then, it is opened once more
        self._rates = Rate.of(problem, bracket.horizon - 1, int(base.tables.whole_trip.min()))
        for bound, root in roots(problem, base, len(self._rates)):
            heapq.heappush(self._heap, (bound, 0, next(self._order), root))
        # The least bound of complete prefixes of larger value: their recomputation or their cycles were only bounded.
        self._ceiling = IMPOSSIBLE

    def run(self, most: int | None = None) -> bool:
        """Open at most ``most`` prefixes, those of earlier runs included; True unless some are left open."""
        bracket, heap, every = self._bracket, self._heap, self._every
        while heap and not (bracket.proven or bracket.beyond if every else bracket.closed):
            if most is not None and self._opened >= most:
                return False
            bracket.clock.check()
            bound, _, _, prefix = heap[0]
            bracket.raise_low(min(bound, self._ceiling, bracket.horizon))
            if bound >= bracket.horizon:
                break
            extended = self._open(bound, prefix)
            heapq.heappop(heap)
            for value, child in extended:
                heapq.heappush(heap, (value, -child.start, next(self._order), child))
            self._opened += 1
        if not bracket.closed:
            bracket.raise_low(min(self._ceiling, bracket.horizon))
        return True

    def _open(self, bound: int, prefix: Prefix) -> list[tuple[int, Prefix]]:
        """The extensions of a prefix that may be better than all; none of one that is complete, or no better."""
        bracket = self._bracket
        if prefix.place is not None and prefix.usage == 0:
            value = bracket.offer(prefix.stages())
            if value is None or value > bound:
                self._ceiling = min(self._ceiling, bound)
            return []
        if not self._every and prefix is not self._last and self._seen.matched(prefix):
            return []
        self._last = prefix
        return extended(self._problem, self._base, prefix, bracket.horizon, self._rates, self._every)


def roots(problem: ChainAllocation, base: Relaxation, rates: int) -> Iterator[tuple[int, Prefix]]:
    """Yield the empty prefixes of allocations with each kind of first stage and usage, with their bounds."""
    nothing = (0,) * len(problem.widths)
    for kind, usage in np.argwhere(base.tables.whole < IMPOSSIBLE):
        bound = int(max(base.tables.whole[kind, usage], base.tables.whole_trip[kind, usage]))
        label = 0, 0, 0, 0, 0, 0, 0, -IMPOSSIBLE, (-IMPOSSIBLE,) * rates, (), 0
        yield bound, Prefix(0, int(kind), int(usage), 0, *label, nothing, UNLIMITED, None, None)


def extended(
    problem: ChainAllocation,
    base: Relaxation,
    prefix: Prefix,
    high: int,
    rates: list[Rate],
    every: bool,
    counts: int | None = None,
) -> list[tuple[int, Prefix]]:
    """The extensions of a prefix by one stage that may lead below ``high``, each with its bound.

    ``counts``: of those that differ in in-flight counts alone, so many of least bound.
    """
    key = prefix.start, prefix.kind, prefix.usage, prefix.position, prefix.allowed
    choice = transitions(problem, base.grid, base.spans, base.tables.possible, *key)
    # Label of the prefix with each transition appended; E_0 is added with the first stage.
    finish = choice.finish if prefix.position == 0 else np.zeros_like(choice.end)
    way = np.maximum(prefix.way + finish, prefix.head + finish + choice.own)
    late = np.zeros_like(finish)
    if problem.ends_together and prefix.position:  # the last stage's E counts where it exceeds E_0
        late = np.maximum(choice.finish - prefix.finish, 0) * (choice.usage == 0)
    top = np.maximum(prefix.top + finish, way + late)
    if not problem.endless:
        top = np.maximum(top, np.maximum(prefix.ahead, choice.wait) + choice.ended)
    head = prefix.head + finish + choice.advance
    passed = prefix.trip + finish + choice.trip if problem.trip_apart else head
    delay = np.maximum(prefix.delay, choice.delays(problem, prefix.largest_forward, prefix.backwards))
    start = prefix.trip + finish
    twice = np.maximum(prefix.twice, choice.twice(problem, start))
    for each in prefix.turns:
        further = prefix.trip, choice.work, choice.width, choice.in_flight
        twice = np.maximum(twice, between_trips(problem.last_batch, each, further) - each[0])
    # V and A behind each, and the bound of its completions.
    time, trip = base.tables.behind(prefix.position, choice.end, choice.kind, choice.usage)
    whole = passed + trip
    bound = np.maximum.reduce([top, head + time, whole + delay + late, 2 * whole + twice + late])
    open_ = bound < high
    paces = []
    for rate, pace in zip(rates, prefix.paces, strict=True):
        open_ &= pace + choice.work + rate.takes * (choice.in_flight - 1) * choice.width <= 0
        own = choice.pace(problem, rate, start, choice.trip + trip, high)
        paces.append(np.maximum(pace, own) + choice.trip)
    places = np.flatnonzero(open_)
    if counts is not None:
        places = places[np.lexsort((twice[places], bound[places]))]
        places = places[_times_before(choice.end[places], choice.kind[places], choice.usage[places]) < counts]
    found = []
    for j in places:
        place = Place(prefix.start, int(choice.end[j]), prefix.kind, int(choice.width[j]), int(choice.held[j]))
        turn = int(start[j]), int(choice.work[j]), place.width, int(choice.in_flight[j])
        turns = (*prefix.turns, turn) if every and turn[-1] < problem.share(place.width) else prefix.turns
        child = _child(problem, prefix, choice, int(j), head, passed, top, way, delay, twice, paces, turns, place)
        found.append((int(bound[j]), child))
    return found


def _times_before(*keys: Array) -> Array:
    """For each entry the number of entries before it whose keys are all the same."""
    order = np.lexsort(keys)
    new = np.any([np.diff(key[order], prepend=-1) != 0 for key in keys], axis=0)
    places = np.arange(len(order))
    times = np.empty_like(places)
    times[order] = places - np.maximum.accumulate(np.where(new, places, 0))
    return times


def _child(
    problem: ChainAllocation,
    prefix: Prefix,
    choice: Transitions,
    j: int,
    head: Array,
    trip: Array,
    top: Array,
    way: Array,
    delay: Array,
    twice: Array,
    paces: list[Array],
    turns: tuple[Turn, ...],
    place: Place,
) -> Prefix:
    """The prefix extended by transition j, with its label from the arrays of all transitions."""
    return Prefix(
        int(choice.end[j]),
        int(choice.kind[j]),
        int(choice.usage[j]),
        prefix.position + 1,
        int(head[j]),
        int(trip[j]),
        int(top[j]),
        int(way[j]),
        prefix.finish if prefix.position else int(choice.finish[j]),
        prefix.ahead + int(choice.ahead[j]),
        int(delay[j]),
        int(twice[j]),
        tuple(int(pace[j]) for pace in paces),
        turns,
        max(prefix.largest_forward, int(choice.work[j] - choice.backward[j])),
        choice.backwards(problem, prefix.backwards, j),
        int(choice.allowed[j]),
        place,
        prefix,
    )


class _Seen:
    """Labels of opened prefixes by start, kind and usage: head, R, way, −E_0, top, G, e, …, −allowed."""

    def __init__(self, forced: int, problem: ChainAllocation) -> None:
        self._problem = problem
        self._forced = forced  # positions from here on are equivalent: no stage there is forced to be first
        self._labels: dict[tuple[int, int, int, int], Array] = {}

    def matched(self, prefix: Prefix) -> bool:
        """True if an earlier prefix is at least as good in every number; otherwise record this one."""
        key = prefix.start, prefix.kind, prefix.usage, min(prefix.position, self._forced)
        label = np.array(
            [
                [
                    prefix.head,
                    *((prefix.trip,) if self._problem.trip_apart else ()),
                    *((prefix.way, -prefix.finish) if self._problem.ends_together else ()),
                    prefix.top,
                    prefix.ahead,
                    prefix.delay,
                    prefix.twice,
                    *prefix.paces,
                    prefix.largest_forward,
                    *prefix.backwards,
                    -prefix.allowed,
                ]
            ]
        )
        known = self._labels.get(key)
        if known is None:
            self._labels[key] = label
            return False
        if (known <= label).all(axis=1).any():
            return True
        self._labels[key] = np.concatenate([known[~(label <= known).all(axis=1)], label])
        return False
