"""Buffers of collectives at levels 2 and 3 of ZeRO, layer by layer."""

from collections.abc import Sequence
from typing import NamedTuple


class Unit(NamedTuple):
    """Layers that are gathered and summed together, in order; bytes that are summed, and gathered; with a backward?"""

    layers: list[int]
    summed: int
    gathered: int
    returns: bool


def with_collectives(i: int, alone: int, units: Sequence[Unit], replicas: int, item: int, every: bool) -> int:
    """The most bytes beside what is held as layer i's weights arrive, in its passes, and as its gradients are summed.

    ``alone``: bytes that the layer itself needs. ``units``: of the whole model, since neighbours on other stages count
    as well. ``every``: weights are gathered in every pass; otherwise they are there all the time.
    """
    earlier = [(unit.layers[-1], unit) for unit in units if unit.layers[-1] < i]
    around = [unit for unit in units if unit.layers[0] <= i <= unit.layers[-1]]
    # only parameterless layers and units with a backward run beside what backwards leave or gather ahead
    back = all(unit.returns for unit in around)
    ahead = max([(last, unit.gathered) for last, unit in earlier if unit.returns], default=(0, 0))[1] * every
    behind = min([(unit.layers[0], unit.summed) for unit in units if unit.layers[0] > i and unit.returns] or [(0, 0)])[
        1
    ]
    latest = max([(unit.layers[0], unit.gathered) for unit in units if unit.layers[0] <= i], default=(0, 0))[1]
    weights, gradients = sum(unit.gathered * every for unit in around), sum(unit.summed for unit in around)
    own = [unit for unit in around if unit.layers[0] == i]
    moments = [alone + weights + latest]
    arriving = own + [unit for unit in around if back and unit.layers[-1] == i]
    if arriving and every:
        previous = max([(last, unit.gathered) for last, unit in earlier], default=(0, 0))[1]
        moments.append(weights + arriving[0].gathered + max(previous, behind * back))
    if back:
        moments.append(alone + weights + gradients + behind + ahead)
    if own and own[0].summed:
        share = -(-own[0].summed // replicas)
        at_once = (replicas - 1) * min(share, 2**20 * item)
        others = gradients - own[0].summed + weights - own[0].gathered * every
        moments.append(2 * own[0].summed + share + at_once + ahead + others)
    return max(moments)
