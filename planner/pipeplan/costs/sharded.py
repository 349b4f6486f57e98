"""Passes of a stage whose parameters or gradients are sharded (ZeRO-2 and -3): what waits for which collective.

A *unit* is a layer with parameters, and the layers without any that follow it in the forward, or in the backward. Its
parameters are gathered while the unit before it computes, its gradients are summed while the next one's backward runs:

::

    forward, level 3      ▒0▒│━━0━━━│━━1━━━━━│━2━│·····│━━3━━│            one unit is gathered ahead
                             │▒1▒   │▒▒2▒    │▒▒▒3▒▒▒▒▒│

    backward              ▒3▒│━━━3━━━━│━━2━━━│··│━━━1━━━━│━━━0━━━━│▒0▒│   gathered ahead: below; summed behind: above
                             │        │▒▒3▒▒▒▒▒▒│▒▒2▒    │▒▒1▒    │
                             │▒2▒     │     ▒1▒ │   ▒0▒  │        │

Where nothing runs beside a collective, every gather and every sum is simply added. Each is waited for at the end of a
unit, so a program that lets sums run on for longer may be faster.
"""

import numpy as np

from pipeplan.costs.chain import Array


def forward_pass(times: Array, gathers: Array, units: Array, beside: bool) -> Array:
    """Return the nanoseconds of each layer's forward with the gathers that it waits for, shape (n,).

    Parameters
    ----------
    times, gathers : array of int, shape (n,)
        Nanoseconds of each layer's forward, and of the gather of its parameters.
    units : array of int
        The layers with parameters, ascending.
    beside : bool
        Collectives run beside the computation.
    """
    if not beside or not len(units):
        return times + gathers
    found = times.copy()
    found[units[0]] += gathers[units[0]]
    ahead = np.add.reduceat(times, units)[:-1]
    found[units[:-1]] += np.maximum(gathers[units[1:]] - ahead, 0)
    return found


def backward_pass(times: Array, gathers: Array, sums: Array, units: Array, beside: bool) -> Array:
    """Return the nanoseconds of each layer's backward with the gathers and sums that it waits for, shape (n,).

    Parameters
    ----------
    times, gathers, sums : array of int, shape (n,)
        Nanoseconds of each layer's backward, of the gather of its parameters and of the sum of its gradients.
    units : array of int
        The layers with parameters, ascending.
    beside : bool
        Collectives run beside the computation.
    """
    if not beside or not len(units):
        return times + gathers + sums
    found = times.copy()
    computed = np.add.reduceat(times[: units[-1] + 1], [0, *(units[:-1] + 1)])
    busy = np.zeros(len(units), np.int64)
    busy[1:] += gathers[units[:-1]]
    busy[:-1] += sums[units[1:]]
    found[units] += np.maximum(busy - computed, 0)
    found[units[-1]] += gathers[units[-1]]
    found[units[0]] += sums[units[0]]
    return found
