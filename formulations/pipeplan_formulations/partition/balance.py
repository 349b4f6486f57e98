"""Balanced partition: boundaries that a greedy choice finds within milliseconds, for a step of any number of stages.

For a target T, each stage in turn takes as many layers as leave it within T by memory, the way-back, own-ending and
warm-up bounds, with the recomputation of `SpanOptions.quick_upper_bound`. T is bisected, once its largest value is
reached at all. The warm-up bound needs the round trip R of the whole partition, which is estimated from the partition
before; so a second round follows the first. The result is a heuristic: no bound.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pipeplan_formulations.common.layer_tables import Array, sums_before
from pipeplan_formulations.common.pass_times import Times
from pipeplan_formulations.common.span_options import IMPOSSIBLE
from pipeplan_formulations.partition.instance import ChainPartition
from pipeplan_formulations.partition.objective import copies_update, reductions
from pipeplan_formulations.partition.tables import Boundaries
from pipeplan_formulations.partition.terms import Overlap, ahead, behind, load

ACCURACY = 1e-3
"""Relative accuracy of the bisection."""
ROUNDS = 2
"""Bisections, each with the round trip of the partition before."""
NEAR, SPANS = 4, 128
"""Starts of a stage on either side of one that is asked for, which are priced with it: in all about so many spans."""


def balanced(problem: ChainPartition, most: int | None = None) -> Boundaries | None:
    """Return boundaries that fit, with a small value of objective ``step``; None if none are found.

    ``most``: values above do not matter.
    """
    best: Boundaries | None = None
    least, largest = problem.lower_bound(), problem.largest if most is None else most
    value, stages = 0, _Stages(problem)
    for _ in range(ROUNDS):
        low, high = least, largest
        found = stages.furthest_ends(high, high)
        while found is not None and high - low > ACCURACY * high:
            middle = min(int((max(low, 1) * high) ** 0.5), high - 1)
            reached = stages.furthest_ends(middle, high)
            if reached is None:
                low = max(middle, low + 1)
            else:
                high, found = middle, reached
        if found is None:
            break
        least = max(least, low)  # a longer trip excludes more
        boundaries, stages.trip = found
        if not problem.feasible(boundaries):
            break
        its_value = problem.evaluate(boundaries)
        largest = max(largest, its_value)
        if best is None or its_value < value:
            best, value = boundaries, its_value
    return best


class _Spans(NamedTuple):
    """Spans of a stage that fit, by start and end: what it takes whatever the target is.

    ``before`` is the part of the way there and ``later`` that of the way back, with and without the trip's own;
    ``once`` comes at the end of a step, and ``beyond`` on top of the round trip.
    """

    ends: Array
    work: Array
    once: Array
    beyond: Array
    way: Times
    passing: Times


@dataclass
class _Stages:
    """Greedy choices of ends for the stages of a problem; ``trip`` is the R that the warm-up bound assumes.

    A bisection meets most starts of a stage several times, so what is known of its spans is kept.
    """

    problem: ChainPartition
    trip: int = 0
    _known: dict[tuple[int, int], tuple[_Spans, slice]] = field(default_factory=dict)
    _widest: dict[tuple[int, int], int] = field(default_factory=dict)

    def furthest_ends(self, target: int, most: int) -> tuple[Boundaries, int] | None:
        """Boundaries and R of a partition within the target, or None. Later targets are below ``most``."""
        problem, start, there, head, passed, boundaries = self.problem, 0, 0, 0, 0, [0]
        for s in range(problem.stages):
            if problem.layers - start < problem.stages - s:
                return None
            key = s, start
            if self._widest.get(key, -1) < target:
                self._learn(s, start, most)
            every, own = self._known[key]
            work, once = every.work[own], every.once[own]
            # Way back with the stage's own ending, and warm-up; V in a role of its own is left to the value.
            fits = there + work + once <= target
            fits &= head + work + (once if s == 0 else 0) <= target
            fits &= self.trip + every.beyond[own] <= target
            chosen = np.flatnonzero(fits)
            if not len(chosen):
                return None
            e = own.start + int(chosen[-1])
            ending = int(every.once[e]) if s == 0 else 0
            there += int(every.way.forward[e])
            head += int(every.way.forward[e]) + int(every.way.backward[e]) + ending
            passed += int(every.passing.forward[e]) + int(every.passing.backward[e]) + ending
            start = int(every.ends[e])
            boundaries.append(start)
        return tuple(boundaries), passed

    def _learn(self, s: int, start: int, most: int) -> None:
        """Price the stage from this start and those near it, with the ends that work alone allows below ``most``.

        A few dozen spans take hardly longer than those of one start.
        """
        last = self.problem.layers - (self.problem.stages - s)
        by = min(NEAR, SPANS // int(self._many(s, np.array([start]), most).max(initial=1)))
        near = range(max(start - by, s), min(start + by, last) + 1) if s else range(1)
        starts = np.array([each for each in near if self._widest.get((s, each), -1) < most])
        spans, edges = self._spans(s, starts, most)
        for each, low, high in zip(starts.tolist(), edges, edges[1:], strict=False):
            self._known[s, each], self._widest[s, each] = (spans, slice(low, high)), most

    def _many(self, s: int, starts: Array, most: int) -> Array:
        """Number of ends that work alone allows behind each start; one for the last stage."""
        problem, behind_it = self.problem, self.problem.stages - 1 - s
        if not behind_it:
            return np.ones_like(starts)
        busy = problem.prefix["forward"][s] + problem.prefix["backward"][s]
        last = np.searchsorted(busy, busy[starts] + most // problem.through[s].stage, side="right") - 1
        many: Array = np.maximum(np.minimum(last, problem.layers - behind_it) - starts, 0)
        return many

    def _spans(self, s: int, starts: Array, most: int) -> tuple[_Spans, list[int]]:
        """The spans that work allows, and memory, cuts and allowed layers, and where those of each start begin."""
        problem, n, count = self.problem, self.problem.layers, self.problem.through[s]
        prefix, overlap, behind_it = problem.prefix, problem.overlap, problem.stages - 1 - s
        # All ends of all starts in a row.
        many = self._many(s, starts, most)
        row = np.repeat(np.arange(len(starts)), many)
        a = starts[row]
        b = a + 1 + np.arange(len(a)) - (np.cumsum(many) - many)[row] if behind_it else np.full_like(a, n)
        again = problem.recomputing.quick_upper_bound(s, a, b)
        fits = again < IMPOSSIBLE
        if problem.cuts is not None and behind_it:
            fits &= problem.cuts[b - 1]
        if problem.where is not None:
            refused = sums_before(~problem.where[s])
            fits &= refused[b] == refused[a]
        row, a, b, again = row[fits], a[fits], b[fits], again[fits]
        # F, B with recomputation, E and sends for every end.
        stage = np.array(s)
        forward, backward, update, weight = (
            prefix[name][s, b] - prefix[name][s, a] for name in ("forward", "backward", "update", "weight")
        )
        backward = backward + np.minimum(again, IMPOSSIBLE // (4 * problem.micro_batches))
        once = update + copies_update(problem, stage, a, b) + reductions(problem, stage, a, b) + count.stage * weight
        out = problem.send[s, b - 1] if behind_it else np.zeros_like(b)
        returned = problem.send_back[s, b - 1] if behind_it else out
        into = problem.send_back[s - 1, a - 1] if s else np.zeros_like(a)
        work = count.stage * load(overlap, forward, backward, out, into)
        # The way ahead, R and services.
        own = Times(forward, backward)
        way, passing, service = problem.roles(own, s, a, b)
        late = count.late * (service.forward + weight) + (count.stage - 1) * service.backward
        longer = problem.longer(own, passing)
        beyond = late if longer is None else late + longer
        latency = int(problem.latency[s]) if behind_it else 0
        hops = [_hop(overlap, times, latency, out, into, returned) for times in (way, passing)]
        edges = np.searchsorted(row, np.arange(len(starts) + 1)).tolist()
        return _Spans(b, work, once, beyond, *hops), edges


def _hop(overlap: Overlap, times: Times, latency: int, out: Array, into: Array, returned: Array) -> Times:
    """p and q for the F and B of each end."""
    there = ahead(overlap, times.forward, latency, out)
    return Times(there, behind(overlap, times.backward, latency, into, returned))
