"""Transition costs of the dynamic programme over suffixes: what a stage adds, for many spans of a mode at once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.allocation.instance import Array, ChainAllocation
from pipeplan_formulations.allocation.suffix_bounds.largest_backward import LargestBackward, Side
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.allocation.suffix_bounds.suffix_tables import Sight
from pipeplan_formulations.allocation.terms import loaded, own, services
from pipeplan_formulations.common.recomputation import IMPOSSIBLE


@dataclass(frozen=True, slots=True)
class Holds:
    """In-flight counts that a stage may have.

    Attributes
    ----------
    least, top : int
        Those of the range of excess that is looked at.
    most : int
        The largest of all ranges.
    """

    least: int
    top: int
    most: int


@dataclass(frozen=True, slots=True)
class Added:
    """What each span adds; nothing is said of those that are not ``open``.

    Attributes
    ----------
    term, work : array
        Its own term of (3), or its load, and how far it moves the head on but for the hop.
    backward : array
        B.
    open : array of bool
        Whether it fits, below the ceiling.
    refused : bool
        Whether some span is closed because it would have to hold more than ``top``, but not more than ``most``.
    """

    term: Array
    work: Array
    backward: Array
    open: NDArray[np.bool_]
    refused: bool


def added(
    problem: ChainAllocation,
    spans: Spans,
    sight: Sight,
    mode: tuple[int, int],
    starts: Array,
    ends: Array,
    holds: Holds,
    send: Array | int,
    into: Array | int,
    side: Side = "anywhere",
) -> Added:
    """For spans from ``starts`` to ``ends`` on a ``mode`` (kind and index of width); ``send`` is f, ``into`` ĝ.

    ``side``: where the stage of the peak stands, if there is one.

    Where k is a choice, the least is taken with which the stage stays below the ceiling. Where sends are in a stage's
    own terms (`Sight.apart`), memory counts the least and the warm-up the largest: a bound.
    """
    c, w = mode
    width = problem.widths[w]
    many = problem.share(width)
    forward = problem.prefix["forward"][c][ends] - problem.prefix["forward"][c][starts]
    backward = problem.prefix["backward"][c][ends] - problem.prefix["backward"][c][starts]
    extra = spans.extra(c, w, starts, ends, holds.least)
    held: Array | int = holds.most if problem.alternating else many
    refused = False
    if sight.ceiling is not None and problem.chooses and problem.alternating and not sight.apart:

        def again(some: NDArray[np.bool_], flights: Array) -> Array:
            return spans.extra(c, w, starts[some], ends[some], flights)

        held = _least_held(many, width, sight.ceiling, sight.peak, side, forward, backward, holds, extra, again)
        refused = bool(((held > holds.top) & (held <= holds.most)).any())
        extra = np.where(held <= holds.top, extra, IMPOSSIBLE)
    is_open = extra < IMPOSSIBLE
    backward = backward + np.where(is_open, extra, 0)
    if sight.ceiling is not None:
        sends = (problem.wire_shares[width], send, into) if sight.apart else (1, 0, 0)
        lanes = services(problem.overlap, many, held, sends[0], forward, backward, sends[1], 0, sends[2])
        is_open &= reduce(np.maximum, lanes) <= sight.ceiling
        if sight.peak is not None:
            is_open &= backward <= sight.peak.largest(width)
            is_open &= (backward >= sight.peak.smallest(width)) | (side != "here")
            if problem.phases:
                is_open &= sight.peak.phased(sight.ceiling, many, width, forward)
            else:
                fewest = holds.least if sight.apart else held
                is_open &= sight.peak.holds(sight.ceiling, many, width, fewest, held, forward + backward, side)
    if sight.quantity == "load":
        once = problem.prefix["reduce"][c, w][ends] - problem.prefix["reduce"][c, w][starts]
        once = once + np.where(once > 0, problem.reduce_base[c, w], 0)
        load = -(-loaded(problem.overlap, many, forward, backward, send, into, once) // problem.divisor)
        return Added(load, np.zeros_like(forward), backward, is_open, refused)
    wait = (many - 1) * into if problem.overlap == "none" else 0
    term = own(problem.overlap, many, forward, backward, send) + wait
    return Added(term, forward + backward, backward, is_open, refused)


def _least_held(
    many: int,
    width: int,
    ceiling: int,
    peak: LargestBackward | None,
    side: Side,
    forward: Array,
    backward: Array,
    holds: Holds,
    extra: Array,
    again: Callable[[NDArray[np.bool_], Array], Array],
) -> Array:
    """The least k from ``holds.least`` on with which each stage stays below the ceiling, or one beyond ``top``.

    Each k asks for at least the next by what it makes a stage recompute, so the first that asks for no more is the
    least. ``extra`` is updated to what it costs, by ``again``.
    """
    held: Array = np.full(len(extra), holds.least)
    while True:
        total = backward + np.where(extra < IMPOSSIBLE, extra, 0)
        room = ceiling - (many - 1) * total
        needed = np.where(forward > 0, many - room // np.maximum(forward, 1), 0)
        if peak is not None:
            needed = peak.needed(ceiling, many, width, np.maximum(held, needed), forward + total, side)
        needed = np.where((room < 0) | (extra >= IMPOSSIBLE), IMPOSSIBLE, needed)
        more = (needed > held) & (needed <= holds.top)
        held = np.maximum(held, needed)
        if not more.any():
            return held
        extra[more] = again(more, held[more])


def finish_by_end(problem: ChainAllocation, c: int, w: int) -> Array:
    """E_0 of a first stage by its end."""
    reduction = problem.prefix["reduce"][c, w]
    base = np.where(reduction > 0, problem.reduce_base[c, w], 0)
    finish: Array = problem.prefix["update"][c, w] + reduction + base
    return finish
