"""List scheduling of a partition with several numbers of micro-batches in flight.

More in flight hides more waiting, but where memory is short it recomputes more; which count suits a stage depends on
the orders of all. So a few rows of counts are tried by list scheduling, and the best is improved stage by stage, if
it is worth it. Between two counts for which a stage recomputes as much only the larger one matters.
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
"""Seconds of list scheduling for each row of counts."""
NEAR = 1.03
"""Rows are improved on partitions whose first value is at most so many times what counts."""

Counts = tuple[int, ...]


class Lists:
    """List scheduling on the partitions of one problem, each once.

    Parameters
    ----------
    problem : JointPipeline
    finish : callable
        Hears of orders on a partition, and says what they are worth; None if they do not fit.
    cutoff : callable
        What values must stay below to matter, or None.
    left : callable
        Seconds.
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
        """Try a partition, unless it was tried."""
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
        """Step up or down on single stages while that helps."""
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
        """The value of the orders that are found with these counts; None if they cannot matter."""
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
        """The largest counts for each time that recomputation may take, ascending."""
        problem = self._problem
        found = []
        count = int(problem.fitting[s, a, b])
        while count > 0:
            found.append(count)
            least = problem.again(s, a, b, count)
            low, high = 0, count  # at low it takes less, or low is 0
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if problem.again(s, a, b, middle) == least else (middle, high)
            count = low
        return found[::-1]


def _begin(levels: list[list[int]]) -> Iterator[Counts]:
    """What fits without recomputing more; and what 1F1B asks for, once and twice, if it fits."""
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
