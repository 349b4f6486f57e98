"""Least sum plus a multiple of the largest, proved by branch-and-bound over caps on the largest.

Pipelines of stages with times t are commonly planned for ::

    min  Σ t_i + w max t_i

For a cap c, a dynamic programme finds S(c), the least sum of times none of which exceeds c, and a solution with this
sum, whose largest time is L(c) ≤ c. No solution with a largest time in [L(c), c] is better than that one. Those with a
largest time in [l, h) are left in intervals, each with the sum S(c) for some c ≥ h::

    S │ ×                                      ×  solved
      │ └────────×                             no solution of an interval is better than S + w l
      │ │   open └──────────×──┐
      └─l────────h──────────┴──┴── largest     halved until no interval is below the best solution
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeplan.baselines.deadline import check_deadline
from pipeplan_formulations.common.layer_tables import distinct

Solution = TypeVar("Solution")
Real = NDArray[np.float64]


def least(
    solve: Callable[[float], tuple[float, float, Solution] | None],
    times: Real,
    weight: int,
    below: float = np.inf,
) -> tuple[float, Solution] | None:
    """Return the least sum plus ``weight`` times the largest, and a solution; None if there is none ``below``.

    Parameters
    ----------
    solve : callable
        ``solve(cap)`` returns the least sum of solutions whose times are at most the cap, the largest time of one with
        this sum, and that solution; None if there is no solution.
    times : array of float
        All times that may be the largest; infinite ones are left out.
    weight : int
        Of the largest, 0 or more.
    below : float
        Solutions with this value or more are of no interest.
    """
    known = distinct(times[np.isfinite(times)])
    best: tuple[float, Solution] | None = None
    open_ = [(-np.inf, 0, len(known), -np.inf)]  # bound, places of times [low, high), a sum that none undercuts
    while open_ and open_[0][0] < below:
        _, low, high, floor = heappop(open_)
        if low == high:
            continue
        place = high - 1 if np.isinf(floor) else _middle(known, low, high)
        check_deadline()
        found = solve(float(known[place]))
        if place + 1 < high:
            heappush(open_, (floor + weight * float(known[place + 1]), place + 1, high, floor))
        if found is not None:
            total, largest, solution = found
            if total + weight * largest < below:
                below = total + weight * largest
                best = below, solution
            heappush(open_, (total + weight * float(known[low]), low, int(np.searchsorted(known, largest)), total))
    return best


def _middle(known: Real, low: int, high: int) -> int:
    """Return the place, at least low, of the largest time up to halfway from that at low to that before high."""
    halfway = (known[low] + known[high - 1]) / 2
    return max(low, int(np.searchsorted(known[:high], halfway, side="right")) - 1)
