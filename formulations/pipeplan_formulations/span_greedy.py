"""A good choice of layers to recompute in a long span, without a list of all choices.

For a level of peaks the layers up to it are taken in the order of cost for each byte saved, until enough is saved; the
last one gives way to the cheapest that is enough. The best of a few levels is the choice; there is one wherever
anything fits.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]

LEVELS = 8
"""Levels of peaks that are tried."""


def greedy(cost: Array, savings: Array, peak: Array, workspace: int, in_flight: int, spare: int) -> Array | None:
    """Places of the layers chosen; None if nothing fits.

    Parameters
    ----------
    cost, savings, peak : array of int, shape (n,)
        Of each layer that may be chosen.
    workspace : int
        The peak where none is.
    in_flight, spare : int
        What is chosen fits if its peak less ``in_flight`` times its savings is at most ``spare``.
    """
    if workspace <= spare:
        return np.zeros(0, np.int64)
    order = np.argsort(peak, kind="stable")
    levels = np.maximum(peak[order], workspace)
    needs = -((spare - levels) // in_flight)
    enough = np.flatnonzero(np.cumsum(savings[order]) >= needs)
    if not len(enough):
        return None
    best: Array | None = None
    for last in np.unique(enough[np.linspace(0, len(enough) - 1, LEVELS).astype(np.int64)]):
        members = order[: last + 1]
        chosen = members[_prefix(cost[members], savings[members], int(needs[last]))]
        if best is None or cost[chosen].sum() < cost[best].sum():
            best = chosen
    return best


def _prefix(cost: Array, savings: Array, need: int) -> Array:
    """Places of layers that save ``need`` together."""
    if need <= 0:
        return np.zeros(0, np.int64)
    order = np.argsort(cost / savings, kind="stable")
    saved = np.cumsum(savings[order])
    last = int(np.searchsorted(saved, need))
    rest = order[last:]
    suited = rest[savings[rest] >= need - (int(saved[last - 1]) if last else 0)]
    return np.append(order[:last], suited[cost[suited].argmin()])
