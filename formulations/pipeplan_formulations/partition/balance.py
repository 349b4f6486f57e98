"""Balanced partition: boundaries that a greedy choice finds within milliseconds, for a step of any number of stages.

For a target T, each stage in turn takes as many layers as leave it within T by memory, the way-back, own-ending and
warm-up bounds, with the recomputation of `SpanOptions.quick_upper_bound`. T is bisected. The warm-up bound needs the
round trip R of the whole partition, which is estimated from the partition before; so a second round follows the first.
The result is a heuristic: no bound.
"""

import numpy as np

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


def balanced(problem: ChainPartition, most: int | None = None) -> Boundaries | None:
    """Return boundaries that fit, with a small value of objective ``step``; None if none are found.

    ``most``: values above do not matter.
    """
    best: Boundaries | None = None
    value = trip = 0
    for _ in range(ROUNDS):
        low, high, found = problem.lower_bound(), problem.largest if most is None else most, None
        while high - low > ACCURACY * high:
            middle = min(int((max(low, 1) * high) ** 0.5), high - 1)
            reached = _furthest_ends(problem, middle, trip)
            if reached is None:
                low = max(middle, low + 1)
            else:
                high, found = middle, reached
        if found is None:
            break
        boundaries, trip = found
        if not problem.feasible(boundaries):
            break
        its_value = problem.evaluate(boundaries)
        if best is None or its_value < value:
            best, value = boundaries, its_value
    return best


def _furthest_ends(problem: ChainPartition, target: int, trip: int) -> tuple[Boundaries, int] | None:
    """Boundaries and R of a partition within the target, or None; ``trip`` is the R that the warm-up bound assumes."""
    n, prefix, overlap = problem.layers, problem.prefix, problem.overlap
    ends = np.ones(n + 1, np.bool_) if problem.cuts is None else np.concatenate([[True], problem.cuts, [True]])
    start, there, head, passed, boundaries = 0, 0, 0, 0, [0]
    for s, count in enumerate(problem.through):
        behind_it = problem.stages - 1 - s
        if n - start <= behind_it:
            return None
        # F, B with recomputation, E and sends for every end of the stage that work alone allows.
        busy = prefix["forward"][s] + prefix["backward"][s]
        last = int(np.searchsorted(busy, busy[start] + (target - head) // count.stage, side="right")) - 1
        b = np.arange(start + 1, min(last, n - behind_it) + 1) if behind_it else np.array([n])
        if not len(b):
            return None
        stage, a = np.array(s), np.array(start)
        again = problem.recomputing.quick_upper_bound(s, np.full(len(b), start), b)
        forward, backward, update, weight = (
            prefix[name][s, b] - prefix[name][s, start] for name in ("forward", "backward", "update", "weight")
        )
        backward = backward + np.minimum(again, IMPOSSIBLE // (4 * problem.micro_batches))
        once = update + copies_update(problem, stage, a, b) + reductions(problem, stage, a, b) + count.stage * weight
        out = problem.send[s, b - 1] if behind_it else np.zeros(1, np.int64)
        returned = problem.send_back[s, b - 1] if behind_it else out
        into = int(problem.send_back[s - 1, start - 1]) if s else 0
        work = count.stage * load(overlap, forward, backward, out, into)
        # Way back with the stage's own ending, warm-up, and allowed cuts and layers.
        fits = (again < IMPOSSIBLE) & ends[b] & (there + work + once <= target)
        fits &= head + work + (once if s == 0 else 0) <= target
        # The way ahead, R and services; V in a role of its own is left to the value.
        own = Times(forward, backward)
        way, passing, service = problem.roles(own, s, a, b)
        late = count.late * (service.forward + weight) + (count.stage - 1) * service.backward
        longer = problem.longer(own, passing)
        fits &= trip + late + (0 if longer is None else longer) <= target
        if problem.where is not None:
            fits &= np.logical_and.accumulate(problem.where[s, start:])[b - start - 1]
        chosen = np.flatnonzero(fits)
        if not len(chosen):
            return None
        e = int(chosen[-1])
        latency = int(problem.latency[s]) if behind_it else 0
        before, later = _hop(overlap, way, e, latency, int(out[e]), into, int(returned[e]))
        there += before
        ending = int(once[e]) if s == 0 else 0
        head += before + later + ending
        if problem.trip_apart:
            before, later = _hop(overlap, passing, e, latency, int(out[e]), into, int(returned[e]))
        passed += before + later + ending
        start = int(b[e])
        boundaries.append(start)
    return tuple(boundaries), passed


def _hop(overlap: Overlap, times: Times, end: int, latency: int, out: int, into: int, returned: int) -> tuple[int, int]:
    """p and q for the F and B of one of the ends."""
    there = ahead(overlap, times.forward[end], latency, out)
    return int(there), int(behind(overlap, times.backward[end], latency, into, returned))
