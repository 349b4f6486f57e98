"""The terms of the chain partition problem's bounds of a step, on integers, arrays or linear expressions.

Each function takes the times of one stage and returns the stage's contribution. Integers serve to evaluate a partition,
arrays to fill the tables of a dynamic programme, and `Expression` to write the rows of a linear model.

::

              g_in ◀──┐           ┌──▶ f         F, B   forward, backward time of the stage
                      │  stage s  │              f      activations to stage s + 1, over link s
         link s − 1 ──┴───────────┴── link s     g      gradients from stage s + 1, over link s
                                       ◀── g     g_in   gradients to stage s − 1, over link s − 1
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from pipeplan_formulations.common.pass_times import Times

Overlap = Literal["none", "copy", "stream"]

# A number is an int, an array or a linear expression: all support +, − and multiplication by an int. The type system
# has no name for that.
Number = Any


class Counts(NamedTuple):
    """Numbers of micro-batches per step: integers, or arrays over pipelines.

    ``stage`` (M_s): on the stage's busiest replica. ``late``: forwards there that must follow its first backward.
    ``out``, ``into``: over the busiest resource of link s, and of link s − 1. ``slower``: nanoseconds of the warm-up's
    pairs of replicas beyond R.
    """

    stage: Number
    late: Number
    out: Number
    into: Number
    slower: Number = 0


def load(overlap: Overlap, forward: Number, backward: Number, send: Number, return_in: Number) -> Number:
    """w_s, the work of a micro-batch: time that the device is busy with it."""
    if overlap == "none":
        return forward + backward + send + return_in
    return forward + backward


def ahead(overlap: Overlap, forward: Number, latency: Number, send: Number) -> Number:
    """p_s: earliest start of stage s + 1 after that of stage s."""
    return forward + latency if overlap == "stream" else forward + latency + send


def behind(overlap: Overlap, backward: Number, latency: Number, return_in: Number, return_out: Number) -> Number:
    """q_s: latest end of the last backward of stage s + 1 before that of stage s.

    If senders wait, g_s is part of w_{s+1} and g_{s−1} follows B_s.
    """
    if overlap == "stream":
        return backward + latency
    return backward + latency + (return_out if overlap == "copy" else return_in)


def in_all(many: int, work: Number, own: Times, behind: Number | None) -> Iterator[tuple[Number, int]]:
    """Yield what a device does on its micro-batches up to its last backward, and how many V end behind that.

    M_s w_s; and where the last slice is ``behind`` on its way through the stages behind, the way through: with all
    forwards before it and one micro-batch's V behind, or with all backwards behind it, and all V.
    """
    yield many * work, many
    if behind is not None:
        yield work + (many - 1) * own.forward + behind, 1
        yield work + (many - 1) * own.backward + behind, many


def delays(
    overlap: Overlap,
    counts: Counts,
    service: Times,
    trip: Times,
    longer: Number | None,
    send: Number,
    return_in: Number,
    weight: Number,
) -> tuple[Number, ...]:
    """The delays e of services and warm-up, T ≥ R + e: what many micro-batches in a row add to the round trip of one.

    Parameters
    ----------
    service, trip : Times
        F and B of one service, and of the stage's part of R.
    longer : number, optional
        What a round trip takes longer through the stage that serves (`PassTables.longer`).
    weight : number
        V_s if backwards are split, else 0.
    """
    there, back = service
    if overlap == "none":
        there, back = there + send, back + return_in
    warm_up = counts.late * (there + weight) + (counts.stage - 1) * back + counts.slower
    lanes = (counts.stage - 1) * there, warm_up
    if longer is not None:
        lanes = lanes[0] + longer, lanes[1] + longer
    if overlap == "none":
        return lanes
    if overlap == "copy":
        return (*lanes, (counts.out - 1) * send, (counts.into - 1) * return_in)
    return (*lanes, counts.out * send - trip.forward, counts.into * return_in - trip.backward)
