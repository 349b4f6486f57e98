"""The bounds of a step in the chain allocation problem for one stage, on integers or arrays.

::

         ĝ ◀──┐           ┌──▶ f         F, B   forward, and backward with recomputed forwards
              │   stage   │              f, g   sends of the hop behind it: activations, gradients
              ┴───────────┴── ◀── g      ĝ      least time of the gradients' send over the hop before it
"""

from typing import Any, Literal

from pipeplan_formulations.common.pass_times import Times

Overlap = Literal["none", "copy", "stream"]

# An int or an array; both support +, − and multiplication by an int.
Number = Any


def own(overlap: Overlap, many: int, forward: Number, backward: Number, send: Number) -> Number:
    """A stage's own term of the way back without ĝ: M_w (F + B), or M_w (F + B + f) if devices wait to send."""
    return many * (forward + backward + send) if overlap == "none" else many * (forward + backward)


def stage_load(
    overlap: Overlap, many: int, forward: Number, backward: Number, send: Number, into: Number, once: Number
) -> Number:
    """Time that a replica is busy per step; ``once`` is R in an endless pipeline, and E in the own-ending bound."""
    return own(overlap, many, forward, backward, send) + (many * into if overlap == "none" else 0) + once


def head_step(overlap: Overlap, work: Number, send: Number, back: Number, latency: Number) -> Number:
    """H_{s+1} − H_s of the way-back bound; ``work`` is F + B."""
    return work + 2 * latency if overlap == "stream" else work + 2 * latency + send + back


def ahead_step(overlap: Overlap, forward: Number, send: Number, latency: Number) -> Number:
    """G_{s+1} − G_s of the own-ending bound."""
    return forward + latency if overlap == "stream" else forward + latency + send


def drain_delay(many: Number, held: Number, work: Number, left: Number, backward: Number) -> Number:
    """e of alternation; ``work`` is F + B, ``left`` the number of the other stage's backwards still to come."""
    return (many - held) * work + left * backward


def micro_batches_behind(last: int, many: Number, held: Number, width: Number) -> Number:
    """a of alternation, in units: micro-batches after that of a stage's backward number M_w − k; ``last`` is m."""
    return last - (many - held) * width


Turn = tuple[int, int, int, int]
"""A stage in cycles: its head of A, F + B, width and k, which is less than M_w."""


def between_trips(
    last: int, stage: tuple[Number, Number, Number, Number], behind: tuple[Number, Number, Number, Number]
) -> Number:
    """What lies between the first and the last trip of a stage: cycles to a stage behind it, then alternation.

    A cycle goes from a forward of the stage to the one behind, and back to a later forward; to the stage itself it is
    alternation. ``last`` is m.
    """
    head, work, width, held = stage
    further, takes, taken, kept = behind
    ahead = held * width - (kept - 1) * taken
    cycles, rest = divmod(last - held * width, ahead)
    return cycles * (further + takes - head) + rest // width * work


def two_phase_delay(many: int, forward: Number, backward: Number) -> Number:
    """e of the two-phase bound, for F and B of any two stages."""
    return (many - 1) * (forward + backward)


def delays(
    overlap: Overlap,
    many: int,
    held: Number,
    link_share: int,
    service: Times,
    trip: Times,
    longer: Number | None,
    send: Number,
    back: Number,
    into: Number,
) -> tuple[Number, ...]:
    """Every one-stage delay e. ``many`` is M_w, ``link_share`` L_w, and ``held`` k, or M_w if they need not alternate.

    ``service`` and ``trip`` are F and B of one service and of the stage's part of A; for ``longer`` see
    `PassTables.longer`.
    """
    forward, backward = service
    if overlap == "none":
        forward, backward = forward + send, backward + into
    late = many - held
    lanes: tuple[Number, ...] = (
        (many - 1) * forward,
        (many - 1) * backward,
        (late * (late > 0)) * forward + (many - 1) * backward,
    )
    if longer is not None:
        lanes = tuple(lane + longer for lane in lanes)
    if overlap == "copy":
        return (*lanes, (link_share - 1) * send, (link_share - 1) * back)
    if overlap == "stream":
        return (*lanes, link_share * send - trip.forward, link_share * into - trip.backward)
    return lanes
