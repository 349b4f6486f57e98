"""Transitions from a boundary: every stage that may begin there, with what it adds to each label of a prefix."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.instance import Array, ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.allocation.terms import behind, drained, loaded, own, services, step_on, two_phases
from pipeplan_formulations.common.recomputation import IMPOSSIBLE
from pipeplan_formulations.common.sentinels import UNLIMITED

LAST = 0
"""The kind that is told to lie behind the last stage, where none does."""


Peaks = tuple[int, ...]
"""The largest backward of the stages so far, for each width."""


@dataclass(frozen=True, slots=True)
class Moves:
    """One entry a choice of width, end and kind behind.

    Attributes
    ----------
    width, end, kind, usage, held : array of int
        Width of the stage, its end, kind of the stage behind it, (flat) usage behind it, and k where that is a choice
        (0 where it is not).
    allowed : array of int
        The excess that the stages behind may have (see `non_increasing`).
    own : array of int
        What it adds to the head in (3); with the objective 'bottleneck' its load, and that of its wires.
    on : array of int
        How far it moves the head on.
    service : array of int
        Its largest e of (4), 0 if none is positive.
    finish : array of int
        E of the stage.
    work, backward, flight : array of int
        F + B, B and k for (5), all 0 where it is not asked for.
    """

    width: Array
    end: Array
    kind: Array
    usage: Array
    held: Array
    allowed: Array
    own: Array
    on: Array
    service: Array
    finish: Array
    work: Array
    backward: Array
    flight: Array

    def services(self, problem: ChainAllocation, front: int, peaks: Peaks) -> Array:
        """The largest e of (4) to (6), where the stages before have F up to ``front``, B up to ``peaks`` by width."""
        found = self.service
        if problem.phases and problem.drains:
            forward, backward = np.maximum(front, self.work - self.backward), np.maximum(max(peaks), self.backward)
            found = np.maximum(found, two_phases(problem.share(problem.widths[0]), forward, backward))
        elif problem.drains:
            many = -(-problem.micro_batches // (self.width * problem.unit))
            found = np.maximum(found, drained(many, self.flight, self.work, self.flight - 1, self.backward))
            rest = behind(problem.last_batch, many, self.flight, self.width)
            for width, peak in zip(problem.widths, peaks, strict=True):
                if peak:
                    found = np.maximum(found, drained(many, self.flight, self.work, rest // width, peak))
        return found

    def peaks(self, problem: ChainAllocation, before: Peaks, j: int) -> Peaks:
        """The largest B by width, after choice j."""
        w = problem.widths.index(int(self.width[j]))
        return (*before[:w], max(before[w], int(self.backward[j])), *before[w + 1 :])

    def only(self, kept: NDArray[np.bool_]) -> "Moves":
        """Some of them."""
        return Moves(*(getattr(self, name)[kept] for name in self.__dataclass_fields__))


def moves(
    problem: ChainAllocation,
    grid: Grid,
    spans: Spans,
    start: int,
    kind: int,
    usage: int,
    position: int,
    allowed: int = UNLIMITED,
) -> Moves:
    """Every stage that may begin at ``start`` on ``kind``, as number ``position`` from the front, with this usage.

    Those before it leave it the excess ``allowed``.
    """
    found = []
    for w, width in enumerate(problem.widths):
        if not _allowed(problem, grid, kind, width, usage, position):
            continue
        behind = usage - width * grid.stride[kind]
        last = int(spans.reach[kind][w][start])
        ends = np.arange(start + 1, last + 1)
        ends = ends[ends == problem.layers] if behind == 0 else ends[ends < problem.layers]
        ends = ends[np.append(problem.cuts, True)[ends - 1]]
        least, most = int(grid.flight[w][usage]), int(grid.most[w][usage])
        flights = np.arange(least, min(most, max(least, (int(grid.total[usage]) + allowed) // width)) + 1)
        extra = spans.extra(kind, w, np.full_like(ends, start), ends, flights[:, None])
        useful = extra < IMPOSSIBLE
        if not problem.drains:
            # Of the k that cost a span the same, the largest leaves least behind a first backward, and most to the
            # rest. (5) may grow with k.
            useful[:-1] &= extra[1:] != extra[:-1]
        row, column = np.nonzero(useful)
        if len(row):
            kinds = [LAST] if behind == 0 else range(problem.kinds)
            span = _Span(start, kind, usage, w, flights[row], ends[column], extra[row, column], allowed)
            found += [_row(problem, grid, span, other, behind) for other in kinds]
    return Moves(
        *(
            np.concatenate([np.zeros(0, np.int64), *(getattr(row, name) for row in found)])
            for name in Moves.__dataclass_fields__
        )
    )


def _allowed(problem: ChainAllocation, grid: Grid, kind: int, width: int, usage: int, position: int) -> bool:
    if int(grid.coordinates[kind][usage]) < width:
        return False
    behind = usage - width * grid.stride[kind]
    if position < len(problem.first):
        if behind == 0 and position < len(problem.first) - 1:
            return False
        return (kind, width) == problem.first[position] and bool(grid.total[behind] >= grid.forced)
    return bool(grid.may_precede(np.array([behind]), kind, width)[0])


@dataclass(frozen=True, slots=True)
class _Span:
    """Stages that begin at one boundary on one kind and width: their k, ends, and forwards run again."""

    start: int
    kind: int
    usage: int
    w: int
    flights: Array
    ends: Array
    extra: Array
    allowed: int


def _row(problem: ChainAllocation, grid: Grid, span: _Span, other: int, behind: int) -> Moves:
    start, kind, usage, w, ends = span.start, span.kind, span.usage, span.w, span.ends
    width, cuts = problem.widths[w], ends - 1
    many = problem.share(width)
    forward, backward = (
        problem.prefix[name][kind][ends] - problem.prefix[name][kind][start] for name in ("forward", "backward")
    )
    backward = backward + span.extra
    nothing = np.zeros(len(ends), np.int64)
    send = back = latency = nothing
    if behind:
        hop = kind, other, int(grid.leaves[other][behind]) if other == kind else 1
        send, back = problem.send[hop][cuts], problem.send_back[hop][cuts]
        latency = nothing + problem.latency[hop]
    into = int(problem.least_back[kind, grid.leaves[kind][usage], start - 1]) if start else 0
    reduce = problem.prefix["reduce"][kind, w][ends] - problem.prefix["reduce"][kind, w][start]
    update = problem.prefix["update"][kind, w][ends] - problem.prefix["update"][kind, w][start]
    chosen, allowed = nothing, nothing + span.allowed
    if problem.chooses:
        chosen, excess = span.flights, span.flights * width - int(grid.total[usage])
        allowed = np.where(chosen >= many, allowed, np.minimum(allowed, excess))
    places = nothing + width, ends, nothing + other, nothing + behind, chosen, allowed
    if problem.objective == "bottleneck":
        once = reduce + np.where(reduce > 0, problem.reduce_base[kind, w], 0)
        load = -(-loaded(problem.overlap, many, forward, backward, send, into, once) // problem.divisor)
        if problem.overlap != "none":
            load = np.maximum(load, problem.wire_shares[width] * np.maximum(send, back) // problem.divisor)
        return Moves(*places, load, *[nothing] * 6)
    held = span.flights if problem.alternating else many
    each = services(problem.overlap, many, held, problem.wire_shares[width], forward, backward, send, back, into)
    return Moves(
        *places,
        own(problem.overlap, many, forward, backward, send) + ((many - 1) * into if problem.overlap == "none" else 0),
        step_on(problem.overlap, forward + backward, send, back, latency),
        np.maximum.reduce(np.broadcast_arrays(nothing, *each)),
        update + reduce + np.where(reduce > 0, problem.reduce_base[kind, w], 0),
        *((forward + backward, backward, span.flights) if problem.drains else [nothing] * 3),
    )
