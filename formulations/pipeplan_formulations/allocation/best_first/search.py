"""Best-first search over prefixes of allocations, with the dynamic programme's tables telling what lies behind each.

A prefix leaves five numbers to the rest: its head H, the largest right side of (3) so far, and the largest e so far,
all with E_0; for (5) and (6) the largest forward and backward so far; and where k is a choice, what the next stage may
hold. Behind it lie at least V and A, so no completion is better than

    max( top,  H + V,  H + A + e ).

Prefixes are opened in this order, deeper ones first where it ties; one that ends in the same boundary, kind and usage
with no number smaller than those of an earlier one is dropped.
"""

import heapq
from dataclasses import dataclass
from itertools import count

import numpy as np

from pipeplan_formulations.allocation.best_first.moves import Moves, Peaks, moves
from pipeplan_formulations.allocation.instance import Array, ChainAllocation
from pipeplan_formulations.allocation.place import Allocation, Place
from pipeplan_formulations.allocation.suffix_bounds.refinement import Relaxation
from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.recomputation import IMPOSSIBLE
from pipeplan_formulations.common.sentinels import UNLIMITED


@dataclass(frozen=True, slots=True)
class _Prefix:
    """Stages from the front, and where the next one begins: boundary, kind, (flat) usage from there on."""

    start: int
    kind: int
    usage: int
    position: int
    head: int
    top: int
    service: int
    front: int
    peaks: Peaks
    allowed: int
    place: Place | None
    before: "_Prefix | None"

    def stages(self) -> Allocation:
        """The stages in order."""
        found, prefix = [], self
        while prefix.place is not None and prefix.before is not None:
            found.append(prefix.place)
            prefix = prefix.before
        return tuple(reversed(found))


def best_first(
    problem: ChainAllocation, bracket: Bracket[Allocation], base: Relaxation, most: int | None = None
) -> None:
    """Close the bracket, or raise its lower end as far as opening so many prefixes does."""
    heap: list[tuple[int, int, int, _Prefix]] = []
    order, seen = count(), _Seen(len(problem.first))
    nothing = (0,) * len(problem.widths)
    for kind, usage in np.argwhere(base.tables.whole < IMPOSSIBLE):
        bound = int(max(base.tables.whole[kind, usage], base.tables.whole_trip[kind, usage]))
        root = _Prefix(0, int(kind), int(usage), 0, 0, 0, 0, 0, nothing, UNLIMITED, None, None)
        heapq.heappush(heap, (bound, 0, next(order), root))
    ceiling = IMPOSSIBLE  # bound of the prefixes whose true value turned out larger: their recomputation was a bound
    for opened in count():
        if not heap or bracket.closed:
            break
        if opened == most:
            return
        bracket.clock.check()
        bound, _, _, prefix = heapq.heappop(heap)
        bracket.raise_low(min(bound, ceiling, bracket.horizon))
        if bound >= bracket.horizon:
            break
        if prefix.place is not None and prefix.usage == 0:
            value = bracket.offer(prefix.stages())
            if value is None or value > bound:
                ceiling = min(ceiling, bound)
            continue
        if seen.matched(prefix):
            continue
        for value, child in _extended(problem, base, prefix, bracket.horizon):
            heapq.heappush(heap, (value, -child.start, next(order), child))
    if not bracket.closed:
        bracket.raise_low(min(ceiling, bracket.horizon))


def _extended(problem: ChainAllocation, base: Relaxation, prefix: _Prefix, high: int) -> list[tuple[int, _Prefix]]:
    """Prefixes with one stage more that may lead below ``high``, each with its bound."""
    key = prefix.start, prefix.kind, prefix.usage, prefix.position, prefix.allowed
    choice = moves(problem, base.grid, base.spans, *key)
    finish = choice.finish if prefix.position == 0 else np.zeros_like(choice.end)
    top = np.maximum(prefix.top + finish, prefix.head + finish + choice.own)
    head = prefix.head + finish + choice.on
    service = np.maximum(prefix.service, choice.services(problem, prefix.front, prefix.peaks))
    time, trip = base.tables.behind(prefix.position, choice.end, choice.kind, choice.usage)
    bound = np.maximum(np.maximum(top, head + time), head + trip + service)
    found = []
    for j in np.flatnonzero(bound < high):
        place = Place(prefix.start, int(choice.end[j]), prefix.kind, int(choice.width[j]), int(choice.held[j]))
        child = _child(problem, prefix, choice, int(j), head, top, service, place)
        found.append((int(bound[j]), child))
    return found


def _child(
    problem: ChainAllocation,
    prefix: _Prefix,
    choice: Moves,
    j: int,
    head: Array,
    top: Array,
    service: Array,
    place: Place,
) -> _Prefix:
    return _Prefix(
        int(choice.end[j]),
        int(choice.kind[j]),
        int(choice.usage[j]),
        prefix.position + 1,
        int(head[j]),
        int(top[j]),
        int(service[j]),
        max(prefix.front, int(choice.work[j] - choice.backward[j])),
        choice.peaks(problem, prefix.peaks, j),
        int(choice.allowed[j]),
        place,
        prefix,
    )


class _Seen:
    """Labels (head, top, e, largest forward and backward, −allowed) of opened prefixes, by what they leave open."""

    def __init__(self, forced: int) -> None:
        self._forced = forced  # from so many stages on, all positions are the same
        self._labels: dict[tuple[int, int, int, int], Array] = {}

    def matched(self, prefix: _Prefix) -> bool:
        """Whether an earlier prefix is at least as good in every number; if none is, this one is remembered."""
        key = prefix.start, prefix.kind, prefix.usage, min(prefix.position, self._forced)
        label = np.array([[prefix.head, prefix.top, prefix.service, prefix.front, *prefix.peaks, -prefix.allowed]])
        known = self._labels.get(key)
        if known is None:
            self._labels[key] = label
            return False
        if (known <= label).all(axis=1).any():
            return True
        self._labels[key] = np.concatenate([known[~(label <= known).all(axis=1)], label])
        return False
