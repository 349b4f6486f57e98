"""Transitions of the best-first search: stages that may begin at a boundary, and what each adds to a prefix."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.allocation.suffix_bounds.transition_costs import Rate
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.allocation.terms import (
    ahead_step,
    between_trips,
    delays,
    drain_delay,
    head_step,
    micro_batches_behind,
    own,
    stage_load,
    two_phase_delay,
)
from pipeplan_formulations.common.layer_tables import Array
from pipeplan_formulations.common.pass_times import Times
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.common.span_options import IMPOSSIBLE

LAST = 0
"""Kind that stands for the missing stage behind the last one."""

LargestBackwards = tuple[int, ...]
"""The largest backward of the stages so far, for each width."""


@dataclass(frozen=True, slots=True)
class Transitions:
    """Stages that may begin at one boundary, one entry per choice of width, end, kind behind and in-flight count.

    Attributes
    ----------
    width, end, kind, usage, held : array of int
        Width of the stage, its end, kind of the stage behind it, (flat) usage behind it, and k if that is a choice
        (else 0).
    allowed : array of int
        The largest excess that the stages behind may have (see `non_increasing`).
    own : array of int
        The stage's own term of the way back; with the objective 'bottleneck', its load or that of its link resources.
    advance, trip : array of int
        H_{s+1} − H_s: by how much the stage increases the head, and by how much A.
    delay : array of int
        The stage's largest one-stage delay e, 0 if none is positive.
    finish : array of int
        E of the stage.
    ahead, wait, ended : array of int
        G_{s+1} − G_s of the own-ending bound, W_s, and the rest of its right side without the larger of G_s and W_s.
    work, backward, in_flight : array of int
        F + B, B and k for alternation, all 0 if neither alternation nor two phases applies.
    """

    width: Array
    end: Array
    kind: Array
    usage: Array
    held: Array
    allowed: Array
    own: Array
    advance: Array
    trip: Array
    delay: Array
    finish: Array
    ahead: Array
    wait: Array
    ended: Array
    work: Array
    backward: Array
    in_flight: Array

    def delays(self, problem: ChainAllocation, largest_forward: int, backwards: LargestBackwards) -> Array:
        """The largest delay e, given the largest F and, by width, the largest B of the stages before."""
        found = self.delay
        if problem.phases and problem.drains:
            forward, backward = (
                np.maximum(largest_forward, self.work - self.backward),
                np.maximum(max(backwards), self.backward),
            )
            found = np.maximum(found, two_phase_delay(problem.share(problem.widths[0]), forward, backward))
        elif problem.drains:
            many = self._shares(problem)
            found = np.maximum(found, drain_delay(many, self.in_flight, self.work, self.in_flight - 1, self.backward))
            rest = micro_batches_behind(problem.last_batch, many, self.in_flight, self.width)
            for width, largest in zip(problem.widths, backwards, strict=True):
                if largest:
                    found = np.maximum(found, drain_delay(many, self.in_flight, self.work, rest // width, largest))
        return found

    def twice(self, problem: ChainAllocation, head: Array) -> Array:
        """The right side of the two trips less 2 A, for stages with E_0 + H ``head``; negative if there are none."""
        if not problem.trips_twice:
            return np.full_like(self.end, -IMPOSSIBLE)
        turn = head, self.work, self.width, self.in_flight
        between = between_trips(problem.last_batch, turn, turn)  # a cycle to the stage itself is alternation
        return np.where(self.in_flight < self._shares(problem), between - head, -IMPOSSIBLE)

    def pace(self, problem: ChainAllocation, rate: Rate, head: Array, trip: Array, high: int) -> Array:
        """−rate for all that each stage holds; −`IMPOSSIBLE` where cycles beyond the rate may end below ``high``.

        ``head`` and ``trip`` are E_0 + H, and F + B + C at least.
        """
        late = head + rate.least(self.width, self.in_flight, self.work, trip) >= high
        return np.where(
            (self.in_flight < self._shares(problem)) & late, -rate.takes * self.in_flight * self.width, -IMPOSSIBLE
        )

    def _shares(self, problem: ChainAllocation) -> Array:
        """M_w of each stage."""
        return -(-problem.micro_batches // (self.width * problem.unit))

    def backwards(self, problem: ChainAllocation, before: LargestBackwards, j: int) -> LargestBackwards:
        """The largest B of the stages so far by width, once choice j is added to the stages ``before``."""
        w = problem.widths.index(int(self.width[j]))
        return (*before[:w], max(before[w], int(self.backward[j])), *before[w + 1 :])

    def only(self, kept: NDArray[np.bool_]) -> "Transitions":
        """The transitions that a mask keeps."""
        return Transitions(*(getattr(self, name)[kept] for name in self.__dataclass_fields__))


def transitions(
    problem: ChainAllocation,
    grid: Grid,
    spans: Spans,
    possible: NDArray[np.bool_],
    start: int,
    kind: int,
    usage: int,
    position: int,
    allowed: int = UNLIMITED,
) -> Transitions:
    """The stages that may begin at boundary ``start`` on a kind, as stage number ``position``, with this usage.

    ``possible`` are the states that may follow, by kind, usage and boundary: shape (C, size, n + 1). ``allowed`` is the
    largest excess that the stages before permit.
    """
    found = []
    for w, width in enumerate(problem.widths):
        if not _mode_allowed(problem, grid, kind, width, usage, position):
            continue
        # Ends within reach, at allowed cuts. Only a stage with no units behind it ends at the last boundary.
        behind = usage - int(grid.step(kind, width))
        last = int(spans.reach[kind][w][start])
        ends = np.arange(start + 1, last + 1)
        kinds = [LAST] if behind == 0 else np.flatnonzero(possible[:, behind, ends].any(axis=1)).tolist()
        ends = ends[possible[kinds, behind][:, ends].any(axis=0)] if behind else ends[ends == problem.layers]
        ends = ends[np.append(problem.cuts, True)[ends - 1]]
        if not len(ends):
            continue
        # Extra forward time by in-flight count (rows) and end (columns).
        least, most = int(grid.least_in_flight[w][usage]), int(grid.most_in_flight[w][usage])
        in_flight = np.arange(least, min(most, max(least, (int(grid.total[usage]) + allowed) // width)) + 1)
        extra = spans.extra(kind, w, np.full_like(ends, start), ends, in_flight[:, None])
        useful = extra < IMPOSSIBLE
        if not problem.drains:
            # Keep the largest k of those with equal cost: it has the smallest delay and allows the most excess behind.
            # With the alternation bound all k are kept, because its delay may grow with k.
            useful[:-1] &= extra[1:] != extra[:-1]
        row, column = np.nonzero(useful)
        if len(row):
            span = _Span(start, kind, usage, w, in_flight[row], ends[column], extra[row, column], allowed)
            found += [_before_kind(problem, grid, span, other, behind) for other in kinds]
    return Transitions(
        *(
            np.concatenate([np.zeros(0, np.int64), *(getattr(row, name) for row in found)])
            for name in Transitions.__dataclass_fields__
        )
    )


def _mode_allowed(problem: ChainAllocation, grid: Grid, kind: int, width: int, usage: int, position: int) -> bool:
    """True if a stage of this mode may stand at the position, given the units left and the forced stages."""
    if int(grid.widest[kind][usage]) < width or not problem.able[kind, problem.widths.index(width)]:
        return False
    behind = usage - int(grid.step(kind, width))
    if position < len(problem.first):
        if behind == 0 and position < len(problem.first) - 1:
            return False
        return (kind, width) == problem.first[position] and bool(grid.total[behind] >= grid.forced)
    return bool(grid.may_precede(np.array([behind]), kind, width)[0])


@dataclass(frozen=True, slots=True)
class _Span:
    """Stages that begin at one boundary on one kind and width: k, end and recomputed forward time of each."""

    start: int
    kind: int
    usage: int
    w: int
    in_flight: Array
    ends: Array
    extra: Array
    allowed: int


def _before_kind(problem: ChainAllocation, grid: Grid, span: _Span, other: int, behind: int) -> Transitions:
    """The transitions of the spans, with a stage of kind ``other`` and the usage ``behind`` following."""
    start, kind, usage, w, ends = span.start, span.kind, span.usage, span.w, span.ends
    width, cuts = problem.widths[w], ends - 1
    many = problem.share(width)
    forward, backward = (
        problem.prefix[name][kind][ends] - problem.prefix[name][kind][start] for name in ("forward", "backward")
    )
    backward = backward + span.extra
    # f, g and l of the hop behind, and ĝ of the hop before.
    nothing = np.zeros(len(ends), np.int64)
    send = back = latency = nothing
    if behind:
        hop = kind, other, int(grid.leaves[other][behind]) if other == kind else 1
        send, back = problem.send[hop][cuts], problem.send_back[hop][cuts]
        latency = nothing + problem.latency[hop]
    into = int(problem.least_back[kind, grid.leaves[kind][usage], start - 1]) if start else 0
    # Excess that the stage permits behind it, unless it holds all its micro-batches.
    chosen, allowed = nothing, nothing + span.allowed
    if problem.chooses:
        chosen, excess = span.in_flight, span.in_flight * width - int(grid.total[usage])
        allowed = np.where(chosen >= many, allowed, np.minimum(allowed, excess))
    places = nothing + width, ends, nothing + other, nothing + behind, chosen, allowed
    if problem.endless:
        once, sums = problem.once(kind, w, start, ends)
        load = -(-stage_load(problem.overlap, many, forward, backward, send, into, once) // problem.divisor)
        load = np.maximum(load, sums)
        if problem.overlap != "none":
            load = np.maximum(load, problem.link_shares[width] * np.maximum(send, back) // problem.divisor)
        return Transitions(*places, load, *[nothing] * 10)
    held = span.in_flight if problem.alternating else many
    alone, carried = Times(forward, backward), problem.link_shares[width]
    way, trip, service = problem.roles(alone, kind, start, ends)
    longer = problem.longer(alone, trip)
    each = delays(problem.overlap, many, held, carried, service, trip, longer, send, back, into)
    advance = head_step(problem.overlap, way.work, send, back, latency)
    passed = advance
    if problem.trip_apart:
        passed = head_step(problem.overlap, trip.work, send, back, latency)
    finish = problem.endings(kind, w, start, ends)
    return Transitions(
        *places,
        problem.in_all(
            own(problem.overlap, many, forward, backward, send)
            + ((many - 1) * into if problem.overlap == "none" else 0),
            alone,
            many,
            ends,
        ),
        advance,
        passed,
        np.maximum.reduce(np.broadcast_arrays(nothing, *each)),
        finish,
        ahead_step(problem.overlap, way.forward, send, latency) if problem.objective == "step" else nothing,
        problem.waits(kind, w, start, ends),
        problem.in_all(stage_load(problem.overlap, many, forward, backward, send, into, nothing), alone, many, ends)
        + finish,
        *((forward + backward, backward, span.in_flight) if problem.drains else [nothing] * 3),
    )
