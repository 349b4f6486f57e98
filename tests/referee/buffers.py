"""Buffers of collectives at levels 2 and 3 of ZeRO, layer by layer."""

from collections.abc import Sequence

Unit = tuple[list[int], int]
"""Layers that are gathered and summed together, in order, and their bytes."""


def with_collectives(i: int, alone: int, units: Sequence[Unit], replicas: int, item: int, every: bool) -> int:
    """The most bytes beside what is held in a forward of layer i, its backward, and the sum of its gradients.

    ``alone``: bytes that the layer itself needs. ``units``: of the whole model, since neighbours on other stages count
    as well. ``every``: parameters are gathered in every pass; otherwise they are there all the time.
    """
    earlier = [(layers[-1], size) for layers, size in units if layers[-1] < i]
    later = [(layers[0], size) for layers, size in units if layers[0] > i]
    begun = [(layers[0], size) for layers, size in units if layers[0] <= i]
    ahead = max(earlier)[1] if earlier and every else 0  # gathered for the backward of the unit before
    behind = min(later)[1] if later else 0  # gradients that have just been summed
    gathered = max(begun)[1] if begun else 0  # the last one in a forward
    whole = sum(
        size for layers, size in units if layers[0] <= i <= layers[-1]
    )  # its own, or of weights shared around it
    summed = sum(size for layers, size in units if layers[0] == i)
    open_, share = whole - summed, -(-summed // replicas)
    forward = whole * every + gathered
    backward = whole * (1 + every) + behind + ahead
    at_once = (replicas - 1) * min(share, 2**20 * item)
    summing = 2 * summed + share + at_once + ahead + open_ * (1 + every)
    return max(alone + forward, alone + backward, summing if summed else 0)
