"""Passes of a stage whose parameters or gradients are sharded (ZeRO-2 and -3): what waits for which collective.

A *unit* is a layer with parameters, and the layers without any that follow it in the forward, or in the backward. Its
parameters are gathered while the unit before it computes, its gradients are summed while the next one's backward runs:

::

    forward, level 3      ▒0▒│━━0━━━│━━1━━━━━│━2━│·····│━━3━━│            one unit is gathered ahead
                             │▒1▒   │▒▒2▒    │▒▒▒3▒▒▒▒▒│

    backward              ▒3▒│━━━3━━━━│━━2━━━│··│━━━1━━━━│━━━0━━━━│▒0▒│   gathered ahead: below; summed behind: above
                             │        │▒▒3▒▒▒▒▒▒│▒▒2▒    │▒▒1▒    │
                             │▒2▒     │     ▒1▒ │   ▒0▒  │        │

Where nothing runs beside a collective, every gather and every sum is simply added. Where computation is slower beside
one, a window is longer by what is lost, and hides only the rest of the collectives. Each is waited for at the end of a
unit, so a program that lets sums run on for longer may be faster.
"""

import numpy as np

from pipeplan.costs.chain import Array
from pipeplan.costs.collectives import lost


def forward_pass(times: Array, gathers: Array, units: Array, speed: float) -> Array:
    """Return the nanoseconds of each layer's forward with the gathers that it waits for, shape (n,).

    Parameters
    ----------
    times, gathers : array of int, shape (n,)
        Nanoseconds of each layer's forward, and of the gather of its parameters.
    units : array of int
        The layers with parameters, ascending.
    speed : float
        Speed of the computation beside collectives, relative to its speed alone; 0 if none run beside it.
    """
    if not speed or not len(units):
        return times + gathers
    found = times.copy()
    found[units[0]] += gathers[units[0]]
    ahead, behind = np.add.reduceat(times, units)[:-1], gathers[units[1:]]
    slower = lost(behind, speed)
    found[units[:-1]] += slower + np.maximum(behind - slower - ahead, 0)
    return found


def backward_pass(times: Array, gathers: Array, sums: Array, units: Array, speed: float) -> Array:
    """Return the nanoseconds of each layer's backward with the gathers and sums that it waits for, shape (n,).

    Parameters
    ----------
    times, gathers, sums : array of int, shape (n,)
        Nanoseconds of each layer's backward, of the gather of its parameters and of the sum of its gradients.
    units : array of int
        The layers with parameters, ascending.
    speed : float
        Speed of the computation beside collectives, relative to its speed alone; 0 if none run beside it.
    """
    if not speed or not len(units):
        return times + gathers + sums
    found = times.copy()
    computed = np.add.reduceat(times[: units[-1] + 1], [0, *(units[:-1] + 1)])
    busy, slower = np.zeros((2, len(units)), np.int64)
    for own, collective in ((slice(1, None), gathers[units[:-1]]), (slice(-1), sums[units[1:]])):
        busy[own] += collective
        slower[own] += lost(collective, speed)
    found[units] += slower + np.maximum(busy - slower - computed, 0)
    found[units[-1]] += gathers[units[-1]]
    found[units[0]] += sums[units[0]]
    return found
