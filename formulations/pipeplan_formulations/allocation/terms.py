"""Equations (3) to (6) of the chain allocation problem for one stage, for integers, arrays and linear expressions.

::

         ĝ ◀──┐           ┌──▶ f         F, B   forward, and backward with what is recomputed in it
              │   stage   │              f, g   sends of the hop behind it, there and back
              ┴───────────┴── ◀── g      ĝ      least send back of the hop before it
"""

from typing import Any, Literal

Overlap = Literal["none", "copy", "stream"]

# An int, an array or a linear expression: what they share is +, − and multiplication by an int.
Number = Any


def own(overlap: Overlap, many: int, forward: Number, backward: Number, send: Number) -> Number:
    """M_w (F + B), with f if the device waits: what (3) adds to the head, but for ĝ."""
    return many * (forward + backward + send) if overlap == "none" else many * (forward + backward)


def loaded(
    overlap: Overlap, many: int, forward: Number, backward: Number, send: Number, into: Number, once: Number
) -> Number:
    """What a replica does in a step of an endless pipeline; ``once`` is R."""
    return own(overlap, many, forward, backward, send) + (many * into if overlap == "none" else 0) + once


def step_on(overlap: Overlap, work: Number, send: Number, back: Number, latency: Number) -> Number:
    """H_{s+1} − H_s of (3); ``work`` is F + B."""
    return work + 2 * latency if overlap == "stream" else work + 2 * latency + send + back


def drained(many: Number, held: Number, work: Number, left: Number, backward: Number) -> Number:
    """e of (5): ``work`` is F + B, ``left`` how many of another stage's backwards are still to come."""
    return (many - held) * work + left * backward


def behind(last: int, many: Number, held: Number, width: Number) -> Number:
    """Micro-batches, in units, behind that of a stage's backward number M_w − k; ``last`` is that of the last one."""
    return last - (many - held) * width


def two_phases(many: int, forward: Number, backward: Number) -> Number:
    """e of (6), for the F and the B of any two stages."""
    return (many - 1) * (forward + backward)


def services(
    overlap: Overlap,
    many: int,
    held: Number,
    wires: int,
    forward: Number,
    backward: Number,
    send: Number,
    back: Number,
    into: Number,
) -> tuple[Number, ...]:
    """Every e of (4). ``many`` is M_w, ``wires`` L_w, ``held`` is k, or M_w where lists need not alternate."""
    if overlap == "none":
        forward, backward = forward + send, backward + into
    late = many - held
    lanes = (many - 1) * forward, (many - 1) * backward, (late * (late > 0)) * forward + (many - 1) * backward
    if overlap == "copy":
        return (*lanes, (wires - 1) * send, (wires - 1) * back)
    if overlap == "stream":
        return (*lanes, wires * send - forward, wires * into - backward)
    return lanes
