"""Transition costs of the dynamic programme over suffixes: contributions of stages, for many spans of a mode."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.instance import ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.largest_backward import LargestBackward, Side
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.allocation.suffix_bounds.suffix_tables import PassSettings
from pipeplan_formulations.allocation.terms import delays, own, stage_load
from pipeplan_formulations.common.layer_tables import Array, sums_before
from pipeplan_formulations.common.pass_times import Times
from pipeplan_formulations.common.span_options import IMPOSSIBLE

BEYOND = (256, 64, 16, 4, 1)
"""Parts by which rates exceed that of the whole target."""


@dataclass(frozen=True, slots=True)
class InFlightRange:
    """In-flight counts that a stage may have.

    Attributes
    ----------
    least, top : int
        Fewest and most within the current range of excess.
    most : int
        Most over all ranges.
    """

    least: int
    top: int
    most: int


@dataclass(frozen=True, slots=True)
class Added:
    """Contribution of each span; valid for those that are ``open``.

    Attributes
    ----------
    term, work, trip : array
        The stage's own term of the way-back bound, or its load, and its part of H_{s+1} − H_s and of A without the hop.
    held : array of int, or int
        k at least.
    open : array of bool
        True if the span fits, below the ceiling.
    refused : bool
        True if some span is closed because it would need more than ``top``, but not more than ``most``, in flight.
    """

    term: Array
    work: Array
    trip: Array
    held: Array | int
    open: NDArray[np.bool_]
    refused: bool


@dataclass(frozen=True, slots=True)
class Rate:
    """What cycles may take for each micro-batch that they advance, ``takes``; ``last`` is m. Any rate is valid."""

    takes: int
    last: int

    @staticmethod
    def of(problem: ChainAllocation, target: int, trip: int) -> "list[Rate]":
        """Rates that the cycles of the fastest plans within a target, with this A, exceed; none where none apply.

        The least is exceeded by little; the others suffice for stages with which that is not long enough.
        """
        last = problem.last_batch
        even = max((target - trip) // (last + 1), 1)
        return [Rate(even + even // part + 1, last) for part in BEYOND] if problem.cycles else []

    def least(self, width: Array | int, held: Array | int, work: Array, trip: Array) -> Array:
        """Time behind E_0 + H of stages with a cycle that takes longer, with F + B + C ``trip``; k is less than M_w.

        A whole number of cycles leaves up to k w − 1 micro-batches to alternation.
        """
        rest = np.minimum(work, self.takes * width)
        return 2 * trip + self.takes * (self.last + 1 - 2 * held * width) + (held - 1) * rest


@dataclass(frozen=True, slots=True)
class Trips:
    """Limits of the trips, one after another, of stages of one width.

    Attributes
    ----------
    width : int
    behind, room, cycles : array
        C at least, what the target leaves beside E_0 + H, and K behind at least.
    rate : Rate or None
        None, as is K, where no cycles are counted.
    """

    width: int
    behind: Array
    room: Array
    cycles: Array | None
    rate: Rate | None

    def only(self, chosen: Array) -> "Trips":
        """Those of the stages with these indices."""
        cycles = None if self.cycles is None else self.cycles[chosen]
        return replace(self, behind=self.behind[chosen], room=self.room[chosen], cycles=cycles)

    def left(self, ceiling: int | None, work: Array) -> Array:
        """The most that (M_w − k) (F + B) may be, for stages with this F + B."""
        left: Array = self.room - 2 * self.behind - work
        return left if ceiling is None else np.minimum(left, ceiling - self.behind)

    def needed(self, ceiling: int, many: int, work: Array) -> Array:
        """The least k that two trips, and cycles, allow; with M_w there are none."""
        left = self.left(ceiling, work)
        needed: Array = np.where(work > 0, many - left // np.maximum(work, 1), 0)
        return np.minimum(np.maximum(np.where(left < 0, many, needed), self._for_cycles(work)), many)

    def allow(self, ceiling: int | None, many: int, held: Array | int, work: Array) -> NDArray[np.bool_]:
        """True for stages with this k and F + B whose trips may be within the target."""
        found: NDArray[np.bool_] = (many - held) * work <= self.left(ceiling, work)
        return (many <= held) | (found & (held >= self._for_cycles(work)))

    def _for_cycles(self, work: Array) -> Array | int:
        """The least k with which no cycle takes more than the rate, or all of them together are within the target."""
        if self.rate is None or self.cycles is None:
            return 0
        taken = self.rate.takes * self.width
        even = -(-(work + self.cycles) // taken)
        rest = np.minimum(work, taken)
        most = 2 * (work + self.behind) + self.rate.takes * (self.rate.last + 1) - rest - self.room
        needed: Array = np.minimum(even, -(-most // (2 * taken - rest)))  # `Rate.least` within the room
        return needed

    def cycle(self, held: Array | int, work: Array) -> Array:
        """K from the stages on."""
        assert self.rate is not None and self.cycles is not None
        found: Array = work + np.maximum(self.rate.takes * (held - 1) * self.width, self.cycles)
        return found


def added(
    problem: ChainAllocation,
    spans: Spans,
    settings: PassSettings,
    mode: tuple[int, int],
    starts: Array,
    ends: Array,
    counts: InFlightRange,
    send: Array | int,
    into: Array | int,
    side: Side = "anywhere",
    trips: Trips | None = None,
) -> Added:
    """Contributions of stages on the spans ``starts`` … ``ends`` in a mode (kind and index of width).

    ``send`` is f, ``into`` is ĝ, and ``side`` the position of the stage with the largest backward, if that is limited.
    ``trips``: where trips one after another apply.

    If k is a choice, the least k that keeps the stage below the ceiling is taken. If a stage's own terms contain sends
    (`PassSettings.by_kind`), memory counts the least k and the warm-up the largest, which gives a lower bound.
    """
    c, w = mode
    width = problem.widths[w]
    many = problem.share(width)
    # F, B, and the recomputed forward time with the fewest micro-batches in flight.
    forward = problem.prefix["forward"][c][ends] - problem.prefix["forward"][c][starts]
    backward = problem.prefix["backward"][c][ends] - problem.prefix["backward"][c][starts]
    extra = spans.extra(c, w, starts, ends, counts.least)
    held: Array | int = counts.most if problem.alternating else many
    refused = False
    if settings.ceiling is not None and problem.chooses and problem.alternating and not settings.by_kind:

        def again(some: NDArray[np.bool_], in_flight: Array) -> Array:
            return spans.extra(c, w, starts[some], ends[some], in_flight)

        alone = Times(forward, backward)
        _, trip, service = problem.roles(alone, c, starts, ends)
        late = _Late(service, service is alone, problem.longer(alone, trip), trips)
        held = _least_held(many, width, settings.ceiling, settings.largest, side, late, counts, extra, again)
        refused = bool(((held > counts.top) & (held <= counts.most)).any())
        extra = np.where(held <= counts.top, extra, IMPOSSIBLE)
    # Close spans that do not fit, exceed the ceiling by a delay, or contradict the range of the largest backward.
    is_open = extra < IMPOSSIBLE
    plain, backward = backward, backward + np.where(is_open, extra, 0)
    if settings.largest is not None and settings.ceiling is not None and side == "here":
        lower = settings.largest.lower(width)
        short = np.flatnonzero(is_open & (backward < lower))
        is_open[short] = False
        if len(short) and problem.chooses and lower < IMPOSSIBLE:
            # Where the least k makes the largest backward too short, more in flight may make it long enough.
            span, rest = (c, w, starts[short], ends[short]), lower - plain[short]
            top = counts.top if isinstance(held, np.ndarray) else counts.most
            able, later = (_may_recompute(problem, spans, *span, k) >= rest for k in (top, counts.most))
            longer = short[able]
            backward[longer], is_open[longer] = lower, True
            refused = refused or bool((later & ~able).any())
            if isinstance(held, np.ndarray):
                room = settings.ceiling - (many - 1) * lower
                if trips is not None:
                    needed = trips.only(longer).needed(settings.ceiling, many, forward[longer] + lower)
                    held[longer] = np.maximum(held[longer], needed)
                refused |= _raise_held(held, longer, many, room, forward[longer], counts)
                is_open[longer] = held[longer] <= counts.top
    alone = Times(forward, backward)
    way, trip, service = problem.roles(alone, c, starts, ends)
    work = way.work
    if settings.ceiling is not None:
        sends = (problem.link_shares[width], send, into) if settings.by_kind else (1, 0, 0)
        stretch = problem.longer(alone, trip)
        lanes = delays(problem.overlap, many, held, sends[0], service, trip, stretch, sends[1], 0, sends[2])
        is_open &= reduce(np.maximum, lanes) <= settings.ceiling
        if settings.largest is not None:
            is_open &= backward <= settings.largest.upper(width)
            if problem.phases:
                is_open &= settings.largest.allows_phases(settings.ceiling, many, width, forward)
            else:
                fewest = counts.least if settings.by_kind else held
                is_open &= settings.largest.allows(settings.ceiling, many, width, fewest, held, work, side)
    if trips is not None:
        is_open &= trips.allow(settings.ceiling, many, held, work)
    fewest = held if isinstance(held, np.ndarray) else counts.least
    # The load, or the own term of the way-back bound.
    if settings.quantity == "load":
        once, sums = problem.once(c, w, starts, ends)
        load = -(-stage_load(problem.overlap, many, forward, backward, send, into, once) // problem.divisor)
        load = np.maximum(load, sums)
        return Added(load, nothing := np.zeros_like(forward), nothing, fewest, is_open, refused)
    wait = (many - 1) * into if problem.overlap == "none" else 0
    term = problem.in_all(own(problem.overlap, many, forward, backward, send) + wait, alone, many, ends)
    return Added(term, work, trip.work if problem.trip_apart else work, fewest, is_open, refused)


@dataclass(frozen=True, slots=True)
class _Late:
    """F and B of services without recomputation, for the delay with late forwards.

    Attributes
    ----------
    service : Times
    recomputes : bool
        True if services count recomputed forwards.
    longer : array or None
        What a round trip takes longer through the stage that serves, without recomputed forwards.
    trips : Trips or None
    """

    service: Times
    recomputes: bool
    longer: Array | None
    trips: Trips | None

    def backward(self, extra: Array) -> Array:
        """B of a service, with this recomputed forward time."""
        backward: Array = self.service.backward
        return backward + extra if self.recomputes else backward

    def room(self, ceiling: int, many: int, backward: Array, extra: Array) -> Array:
        """Time that the ceiling leaves for late forwards, with this B of a service."""
        room: Array = ceiling - (many - 1) * backward
        return room if self.longer is None else room - self.longer - extra


def _raise_held(held: Array, longer: Array, many: int, room: int, forward: Array, counts: InFlightRange) -> bool:
    """Raise k, of the spans ``longer``, to what the delay with late forwards requires; True if it is beyond ``top``.

    ``room``: the time that the ceiling leaves for late forwards.
    """
    needed = np.where(forward > 0, many - room // np.maximum(forward, 1), 0)
    held[longer] = np.maximum(held[longer], needed if room >= 0 else IMPOSSIBLE)
    return bool(((held[longer] > counts.top) & (held[longer] <= counts.most)).any())


def _may_recompute(
    problem: ChainAllocation, spans: Spans, c: int, w: int, starts: Array, ends: Array, in_flight: int
) -> Array:
    """The most forward time that stages with up to so many micro-batches in flight may have to recompute.

    That of so many, as it grows with them; if they do not fit, that of all layers that may be recomputed.
    """
    every = sums_before(np.where(problem.recomputable, problem.forward[c], 0))
    extra = spans.extra(c, w, starts, ends, in_flight)
    return np.where(extra < IMPOSSIBLE, extra, every[ends] - every[starts])


def _least_held(
    many: int,
    width: int,
    ceiling: int,
    largest: LargestBackward | None,
    side: Side,
    late: _Late,
    counts: InFlightRange,
    extra: Array,
    again: Callable[[NDArray[np.bool_], Array], Array],
) -> Array:
    """The least k, from ``counts.least`` on, that keeps each stage below the ceiling; above ``top`` if none does.

    A larger k may force more recomputation, which in turn may require a larger k. So k is raised until it satisfies its
    own requirement. ``extra`` is updated to the recomputed forward time of that k, by ``again``.
    """
    held: Array = np.full(len(extra), counts.least)
    forward = late.service.forward
    while True:
        # The k that late forwards and two trips require for the current recomputation; then that of alternation.
        recomputed = np.where(extra < IMPOSSIBLE, extra, 0)
        total = late.backward(recomputed)
        room = late.room(ceiling, many, total, recomputed)
        needed = np.where(forward > 0, many - room // np.maximum(forward, 1), 0)
        if late.trips is not None:
            needed = np.maximum(needed, late.trips.needed(ceiling, many, forward + total))
        if largest is not None:
            needed = largest.needed(ceiling, many, width, np.maximum(held, needed), forward + total, side)
        needed = np.where((room < 0) | (extra >= IMPOSSIBLE), IMPOSSIBLE, needed)
        more = (needed > held) & (needed <= counts.top)
        held = np.maximum(held, needed)
        if not more.any():
            return held
        extra[more] = again(more, held[more])
