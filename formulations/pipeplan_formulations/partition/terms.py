"""Equations (2), (4) and (5) of the chain partition problem, written once for everything that adds.

Each function takes the times of one stage and returns what the stage contributes. Given integers it evaluates, given
arrays it fills the tables of a dynamic programme, given `Expression` it writes the rows of a linear model.

::

              g_in ◀──┐           ┌──▶ f         F, B   forward, backward time of the stage
                      │  stage s  │              f      activations to stage s + 1, over link s
         link s − 1 ──┴───────────┴── link s     g      gradients from stage s + 1, over link s
                                       ◀── g     g_in   gradients to stage s − 1, over link s − 1
"""

from typing import Any, Literal

Overlap = Literal["none", "copy", "stream"]

# A number here is an int, an array or a linear expression: what they share is +, − and multiplication by an int,
# which the type system has no name for.
Number = Any


def load(overlap: Overlap, forward: Number, backward: Number, send: Number, return_in: Number) -> Number:
    """w_s, (2): how long a micro-batch keeps the device busy."""
    if overlap == "none":
        return forward + backward + send + return_in
    return forward + backward


def advance(overlap: Overlap, load: Number, latency: Number, send: Number, return_out: Number) -> Number:
    """H_{s+1} − H_s in (4): how much later stage s + 1 starts, and how much earlier it must end, than stage s."""
    if overlap == "copy":
        return load + 2 * latency + send + return_out
    return load + 2 * latency


def delays(
    overlap: Overlap, many: int, forward: Number, backward: Number, send: Number, return_in: Number
) -> tuple[Number, ...]:
    """e in (5), T ≥ R + e: what M micro-batches in a row add to the way of one of them. ``many`` is M."""
    if overlap == "none":
        return (many - 1) * (forward + send), (many - 1) * (backward + return_in)
    lanes = (many - 1) * forward, (many - 1) * backward
    if overlap == "copy":
        return (*lanes, (many - 1) * send, (many - 1) * return_in)
    return (*lanes, many * send - forward, many * return_in - backward)
