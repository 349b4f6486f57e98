"""Best-first search over intervals of the longest slice, each with a dynamic programme.

::

    Σ t │▙                 S(c): least sum of slices of at most c each; it falls as c grows. For a longest slice within
        │ ▀▙▄▖             (a, b]:  T ≥ D · S(b) + (K − 1) · (the first time above a)
        │    ▝▀▀▙▄▄▄▄
        └───────────── c   An interval is halved at a time c. If S(c) is reached by slices of at most r ≤ c, nothing
           a  r c  b       in [r, c] is better than these: (a, r) and (c, b] are left.

S(c) takes a row of numpy for each unit: S_e = min over j of S_j + t(j, e), where t(j, e) ≤ c.
"""

from dataclasses import dataclass

import numpy as np

from pipeplan_formulations.common.branch_and_bound import BranchAndBound, Step
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Progress, Report
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.slicing.instance import Cuts, Slicing


@dataclass
class Interval:
    """Slicings whose longest slice takes one of the times from number ``low`` to number ``high``.

    Attributes
    ----------
    bound : int
        Lower bound on T.
    total : int
        Lower bound on the sum of the slices' times.
    """

    bound: int
    total: int
    low: int
    high: int

    @property
    def rank(self) -> tuple[int, ...]:
        """Of equal bounds the shortest slices first."""
        return (self.low,)


class Intervals(BranchAndBound[Interval, Cuts]):
    """The search of `solve`, which has its parameters."""

    def __init__(self, problem: Slicing, limits: Limits, on_progress: Progress | None = None) -> None:
        super().__init__(limits, lambda value, bound, _: on_progress(value, bound) if on_progress else None)
        self.problem = problem
        known = np.unique(problem.slice_times)
        self.longest = known[known < UNLIMITED]
        """The times of slices, ascending."""
        if len(self.longest):
            self.push(self._interval(0, 0, len(self.longest) - 1))

    def advance(self, node: Interval) -> Step[Interval]:
        """Halve an interval; first of all, no time is too long."""
        middle = node.high if not self.opened else (node.low + node.high) // 2
        cuts = self._cheapest(int(self.longest[middle]))
        above = [(node.total, middle + 1, node.high)]
        if cuts is None:
            below = []
        else:
            times = self.problem.of(cuts)
            self.improve(cuts, self.problem.value(sum(times), max(times)))
            below = [(sum(times), node.low, int(np.searchsorted(self.longest, max(times))) - 1)]
        return Step.split([self._interval(*part) for part in (*below, *above) if part[1] <= part[2]])

    def _interval(self, total: int, low: int, high: int) -> Interval:
        return Interval(self.problem.value(total, int(self.longest[low])), total, low, high)

    def _cheapest(self, cap: int) -> Cuts | None:
        """Slices of least time in all, of at most ``cap`` each; None if there are none."""
        n, times = self.problem.units, self.problem.times
        least = np.full(n + 1, UNLIMITED, np.int64)
        before = np.zeros(n + 1, np.int64)
        least[0] = 0
        for end in range(1, n + 1):
            row = times[end, :end]
            sums = np.where((row <= cap) & (least[:end] < UNLIMITED), least[:end] + row, UNLIMITED)
            before[end] = sums.argmin()
            least[end] = sums[before[end]]
        if least[n] == UNLIMITED:
            return None
        cuts = [n]
        while cuts[-1]:
            cuts.append(int(before[cuts[-1]]))
        return tuple(reversed(cuts))


def solve(problem: Slicing, limits: Limits, on_progress: Progress | None = None) -> Report[Cuts]:
    """Find slices of least T.

    Parameters
    ----------
    problem : Slicing
    limits : Limits
    on_progress : callable, optional
        See `Progress`.
    """
    clock = Clock(limits)
    search = Intervals(problem, limits, on_progress)
    search.run()
    return search.report(clock.wall, "programmes")
