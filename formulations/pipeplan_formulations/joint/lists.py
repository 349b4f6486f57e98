"""List scheduling of a partition with several vectors of in-flight counts.

A larger count hides more waiting, but recomputes more if memory is short. The best count of a stage depends on the
orders of all stages. So a few vectors of counts are tried by list scheduling, and the best one is improved stage by
stage if it is promising. Among counts with the same recomputation time only the largest is tried.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from pipeplan_formulations.joint.box import Box, put
from pipeplan_formulations.joint.instance import JointPipeline
from pipeplan_formulations.joint.relaxed import relaxed
from pipeplan_formulations.partition import Boundaries
from pipeplan_formulations.schedule import Orders, lower_bound
from pipeplan_formulations.schedule.constructive import constructive

GLANCE = 0.1
"""Seconds of list scheduling for each vector of counts."""
NEAR = 1.03
"""Counts are improved on partitions whose first value is at most this multiple of the cutoff."""

Counts = tuple[int, ...]


class Lists:
    """List scheduling of the partitions of one problem, each tried once.

    Parameters
    ----------
    problem : JointPipeline
    finish : callable
        Called with a partition and its orders; returns their value, or None if they do not fit.
    cutoff : callable
        Returns the value that solutions must stay below, or None.
    left : callable
        Returns the seconds left.
    """

    def __init__(
        self,
        problem: JointPipeline,
        finish: Callable[[Boundaries, Orders], int | None],
        cutoff: Callable[[], int | None],
        left: Callable[[], float],
    ) -> None:
        self._problem, self._finish, self._cutoff, self._left = problem, finish, cutoff, left
        self.tried: set[Boundaries] = set()

    def run(self, boundaries: Boundaries) -> None:
        """Schedule a partition, unless it was tried before."""
        if boundaries in self.tried:
            return
        self.tried.add(boundaries)
        levels = [self._levels(s, boundaries[s], boundaries[s + 1]) for s in range(self._problem.stages)]
        values: dict[Counts, int | None] = {}
        for counts in _begin(levels):
            if counts not in values:
                values[counts] = self._value(boundaries, counts)
        known = [(value, counts) for counts, value in values.items() if value is not None]
        cutoff = self._cutoff()
        if known and (cutoff is None or min(known)[0] <= NEAR * cutoff):
            self._improve(boundaries, levels, values, min(known))

    def _improve(
        self,
        boundaries: Boundaries,
        levels: list[list[int]],
        values: dict[Counts, int | None],
        best: tuple[int, Counts],
    ) -> None:
        """Hill climbing: raise or lower the count of single stages while that improves the value."""
        improved = True
        while improved and self._left() > 0:
            improved = False
            for counts in list(_neighbours(best[1], levels)):
                if counts in values or self._left() <= 0:
                    continue
                values[counts] = value = self._value(boundaries, counts)
                if value is not None and value < best[0]:
                    best, improved = (value, counts), True
                    break

    def _value(self, boundaries: Boundaries, counts: Counts) -> int | None:
        """Value of the orders found with these counts; None if they cannot be below the cutoff."""
        point = replace(Box.whole(self._problem).at(boundaries), fewest=counts, most=counts)
        instance, cutoff = relaxed(self._problem, point), self._cutoff()
        if instance is None:
            return None
        bound = lower_bound(instance)
        if cutoff is not None and bound >= cutoff:
            return None
        found = constructive(instance, min(GLANCE, self._left()), bound)
        return None if found is None else self._finish(boundaries, found[1])

    def _levels(self, s: int, a: int, b: int) -> list[int]:
        """Largest in-flight count for each possible recomputation time of a stage, ascending."""
        problem = self._problem
        found = []
        # From the largest count that fits: bisection finds the next smaller count with less recomputation.
        count = int(problem.fitting[s, a, b])
        while count > 0:
            found.append(count)
            least = problem.recomputation(s, a, b, count)
            low, high = 0, count  # at low it takes less, or low is 0
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if problem.recomputation(s, a, b, middle) == least else (middle, high)
            count = low
        return found[::-1]


def _begin(levels: list[list[int]]) -> Iterator[Counts]:
    """Initial counts: those of least recomputation, and those of 1F1B, once and twice, capped to what fits."""
    stages = len(levels)
    yield tuple(own[0] for own in levels)
    for wanted in ([stages - s for s in range(stages)], [2 * (stages - s) - 1 for s in range(stages)]):
        yield tuple(
            next((level for level in own if level >= want), own[-1]) for own, want in zip(levels, wanted, strict=True)
        )


def _neighbours(counts: Counts, levels: list[list[int]]) -> Iterator[Counts]:
    for s, own in enumerate(levels):
        place = own.index(counts[s])
        for other in (place - 1, place + 1):
            if 0 <= other < len(own):
                yield put(counts, s, own[other])
