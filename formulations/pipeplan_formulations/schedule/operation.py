"""What a pipeline runs: operations on devices, transfers on wires, and lists of them."""

from typing import Literal, NamedTuple

Kind = Literal["F", "I", "W", "A", "G"]
"""Forward, input gradient, weight gradient; and on wires the activations that F and the gradients that I sends."""


class Op(NamedTuple):
    """An operation: one kind of work on one micro-batch at one stage. A transfer belongs to the stage that sends."""

    kind: Kind
    stage: int
    micro_batch: int


Orders = tuple[tuple[Op, ...], ...]
"""A solution: what every device runs, in order. Where tensors occupy wires, one more list may follow, of all transfers:
each wire serves its own in that order. Without it they are served first come, first served.

A forward of a device with two lanes starts when those operations of the other lane have ended that stand ahead of it in
the list."""
