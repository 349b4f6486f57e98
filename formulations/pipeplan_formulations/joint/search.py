"""Best-first search over boxes of choices: partitions by bounds, schedules by CP-SAT, cuts between them.

Logic-based Benders decomposition (Hooker and Ottosson, Mathematical Programming 96, 2003): the partition problem is the
master, which only knows inequalities; the schedule problem answers what its partition P is really worth; and the answer
becomes a cut on all partitions for which the proof holds as well.

::

    box of choices ──partition problem──▶ P ──schedule problem──▶ its best order, and a bound
          ▲                                                             │
          └── the rest, as disjoint boxes ◀── box around P, closed ◀────┘
"""

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from pipeplan_formulations import partition, schedule
from pipeplan_formulations.joint.box import Box
from pipeplan_formulations.joint.finished import finished, most_in_flight
from pipeplan_formulations.joint.grow import grown
from pipeplan_formulations.joint.problem import Choice, JointPipeline
from pipeplan_formulations.joint.relaxed import chained, relaxed
from pipeplan_formulations.partition import Boundaries
from pipeplan_formulations.partition.windows import windows
from pipeplan_formulations.report import Limits, Status, Stop
from pipeplan_formulations.schedule import Orders, PipelineSchedule, lower_bound
from pipeplan_formulations.schedule.constructive import constructive

FIRST_SLICE = 0.5
"""Seconds that CP-SAT gets for a partition at first; doubled each time they were not enough."""
GLANCE = 0.1
"""Seconds of list scheduling for each number of micro-batches in flight that is tried on a partition."""

Offer = Callable[[Choice, Orders, int], None]
"""Hears of a solution and its value by (13)."""


@dataclass
class _Known:
    """What was learned of one partition's box: a bound, the slice of time that the next try gets, the best orders.

    ``beyond``: no solver can raise the bound.
    """

    bound: int
    slice: float = FIRST_SLICE
    solved: Orders | None = None
    beyond: bool = False


class Search:
    """The state of one search.

    Parameters
    ----------
    problem : JointPipeline
    limits : Limits
        ``gap``, ``workers`` and ``seed`` of the solvers; `step` is told the time.
    offer : callable
        See `Offer`. Whoever listens decides what counts as the incumbent's value.
    cutoff : callable
        What values must stay below to matter; None while there is no incumbent. It may fall, never rise.
    box : Box, optional
        Where to look; by default everywhere.
    """

    def __init__(
        self,
        problem: JointPipeline,
        limits: Limits,
        offer: Offer,
        cutoff: Callable[[], int | None],
        backend: str = "cpsat",
        box: Box | None = None,
    ) -> None:
        self.problem = problem
        self._limits, self._offer, self._cutoff, self._backend = limits, offer, cutoff, backend
        self._heap: list[tuple[int, int, Box]] = []
        self._number = 0
        self._settled: int | None = None
        self._current: int | None = None
        self._known: dict[Box, _Known] = {}
        self._tried: set[Boundaries] = set()
        self._end = 0.0
        self._push(Box.whole(problem) if box is None else box, problem.chain.lower_bound())

    @property
    def open(self) -> bool:
        """Whether there is anything left to look at."""
        return bool(self._heap)

    @property
    def bound(self) -> int | None:
        """No choice is worth less, unless it is worth the cutoff or more; None if there are none that fit."""
        known = [self._heap[0][0]] if self._heap else []
        known += [bound for bound in (self._settled, self._current) if bound is not None]
        return min(known, default=None)

    def step(self, seconds: float) -> None:
        """Look at the box of the least bound, for so long at most."""
        self._end = time.monotonic() + seconds
        bound, _, box = heapq.heappop(self._heap)
        self._current = bound  # stays so if it is interrupted
        for part, known in list(self._parts(box, bound)):
            self._push(part, known)
        self._current = None

    def propose(self, boundaries: Boundaries, seconds: float) -> None:
        """Look for the best orders of a partition that somebody else found."""
        end = time.monotonic() + seconds
        point = Box.whole(self.problem).at(boundaries)
        alone = Search(self.problem, self._limits, self._offer, self._cutoff, self._backend, point)
        while alone.open and time.monotonic() < end:
            alone.step(end - time.monotonic())
        self._known |= alone._known
        self._tried |= alone._tried

    def _push(self, box: Box, bound: int) -> None:
        """Open a box, or close it if its bound says so."""
        if self._closed(bound):
            self._settle(bound)
        else:
            self._number += 1
            heapq.heappush(self._heap, (bound, -self._number, box))

    def _settle(self, bound: int) -> None:
        self._settled = bound if self._settled is None else min(self._settled, bound)

    def _closed(self, bound: int) -> bool:
        cutoff = self._cutoff()
        return cutoff is not None and bound >= cutoff

    @property
    def _left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def _parts(self, box: Box, bound: int) -> Iterator[tuple[Box, int]]:
        """What is open below a box after a step, with bounds."""
        instance = relaxed(self.problem, box)
        if instance is None:
            return
        bound = max(bound, lower_bound(instance))
        if self._closed(bound):
            self._settle(bound)
            return
        shrunk, boundaries, bound = self._partition(box, bound, instance.limit)
        if shrunk is None:
            return
        if boundaries is None:
            yield shrunk, bound
            return
        yield from self._around(shrunk, boundaries, bound)

    def _partition(self, box: Box, bound: int, room: tuple[int, ...]) -> tuple[Box | None, Boundaries | None, int]:
        """The box without what the partition problem excludes, its best partition, and the bound; None if it is closed.

        Without a partition: the time was over.
        """
        master = chained(self.problem, box, room)
        open_ = windows(master).open
        if not open_[0, 0]:
            return None, None, bound
        ends = [np.flatnonzero(row) for row in open_]
        low, high = tuple(int(row[0]) for row in ends), tuple(int(row[-1]) for row in ends)
        box = replace(box, low=low, high=high)
        if box.single:
            return box, low, max(bound, master.evaluate(low, optimistic=True))
        limits = replace(self._limits, time=self._left)
        report = partition.solve(master, limits, backend="exact", cutoff=self._cutoff())
        if report.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt
        bound = max(bound, report.bound)
        if report.status is Status.INFEASIBLE:
            return None, None, bound
        if self._closed(bound):
            self._settle(bound)
            return None, None, bound
        return box, report.solution, bound

    def _around(self, box: Box, boundaries: Boundaries, bound: int) -> Iterator[tuple[Box, int]]:
        """Ask what the partition is worth, and divide the box around it."""
        point = box.at(boundaries)
        instance = relaxed(self.problem, point)
        assert instance is not None
        known = self._known.setdefault(point, _Known(bound))
        known.bound = max(known.bound, bound, lower_bound(instance))
        self._try(boundaries)
        if not (self._closed(known.bound) or known.solved or known.beyond):
            self._schedule(point, instance, known)
        if box.single:
            yield from self._single(point, instance, known)
            return
        cutoff = self._cutoff()
        target = (bound + known.bound + 1) // 2
        if cutoff is not None and known.bound >= cutoff:
            target = cutoff
        if known.bound <= bound:
            inner, proved = point, known.bound
        else:
            inner, proved = self._grown(point, box, target, known.bound)
        for part in box.without(inner):
            yield part, bound
        yield inner, proved

    def _grown(self, point: Box, box: Box, target: int, bound: int) -> tuple[Box, int]:
        """The largest box around a partition whose relaxation proves the target."""
        proved = {point: bound}

        def proof(wider: Box) -> bool:
            instance = relaxed(self.problem, wider)
            proved[wider] = target if instance is None else lower_bound(instance)
            return proved[wider] >= target

        inner = grown(point, box, proof, lambda: self._left > 0)
        return inner, proved[inner]

    def _try(self, boundaries: Boundaries) -> None:
        """Offer what list scheduling finds on a partition, with several numbers of micro-batches in flight."""
        if boundaries in self._tried:
            return
        self._tried.add(boundaries)
        problem = self.problem
        for counts in dict.fromkeys(self._in_flight(boundaries)):
            box = replace(Box.whole(problem).at(boundaries), fewest=counts, most=counts)
            instance = relaxed(problem, box)
            if instance is None or self._closed(lower_bound(instance)):
                continue
            found = constructive(instance, min(GLANCE, self._left))
            if found is not None:
                self._finish(boundaries, found[1])

    def _in_flight(self, boundaries: Boundaries) -> Iterator[tuple[int, ...]]:
        """Counts to try: what fits without recomputing more; and what 1F1B asks for, once and twice, if it fits."""
        problem, stages = self.problem, range(self.problem.stages)
        spans = [(s, boundaries[s], boundaries[s + 1]) for s in stages]
        fit = [int(problem.fitting[span]) for span in spans]
        least = [problem.again(*span, 1) for span in spans]
        free = []
        for span, most, least_again in zip(spans, fit, least, strict=True):
            low, high = 1, most
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if problem.again(*span, middle) == least_again else (low, middle - 1)
            free.append(low)
        yield tuple(free)
        for wanted in ([problem.stages - s for s in stages], [2 * (problem.stages - s) - 1 for s in stages]):
            yield tuple(max(own, min(want, most)) for own, want, most in zip(free, wanted, fit, strict=True))

    def _finish(self, boundaries: Boundaries, orders: Orders) -> int | None:
        """Offer what orders make of a partition; its value."""
        found = finished(self.problem, boundaries, orders)
        if found is None:
            return None
        value, (choice, own) = found
        if not self._closed(value):
            self._offer(choice, own, value)
        return value

    def _schedule(self, point: Box, instance: PipelineSchedule, known: _Known) -> None:
        """A slice of the solver's time for a partition."""
        slice_ = min(known.slice, self._left)
        if slice_ <= 0:
            return
        report = schedule.solve(instance, replace(self._limits, time=slice_, gap=0.0), backend=self._backend)
        if report.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt
        known.bound = max(known.bound, report.bound)
        if report.solution is not None:
            self._finish(point.low, report.solution)
            if report.status is Status.OPTIMAL:
                known.solved = report.solution
        known.beyond = report.stop in (Stop.EXHAUSTED, Stop.ERROR)
        if slice_ >= known.slice:
            known.slice *= 2

    def _single(self, point: Box, instance: PipelineSchedule, known: _Known) -> Iterator[tuple[Box, int]]:
        """A box of one partition: open until it is solved; where its relaxation is not exact, it is split."""
        if known.beyond:
            self._settle(known.bound)
            return
        if known.solved is None:
            yield point, known.bound
            return
        value = self._finish(point.low, known.solved)
        parts = [] if value is None or value <= known.bound else list(self._split(point, instance, known.solved))
        if not parts:
            self._settle(known.bound)
        for part in parts:
            yield part, known.bound

    def _split(self, point: Box, instance: PipelineSchedule, orders: Orders) -> Iterator[Box]:
        """Where orders recompute more than their relaxation does, or split what is better joined: one or the other."""
        problem, boundaries = self.problem, point.low
        dearer = []
        for s, order in enumerate(orders):
            span = s, boundaries[s], boundaries[s + 1]
            count = max(point.fewest[s], most_in_flight(order, instance.split[s]))
            least = problem.again(*span, point.fewest[s])
            dearer.append((problem.again(*span, count) - least, s, count))
        extra, s, count = max(dearer)
        if extra > 0:
            span = s, boundaries[s], boundaries[s + 1]
            cost = problem.again(*span, count)
            while problem.again(*span, count - 1) == cost:
                count -= 1
            yield replace(point, most=_put(point.most, s, count - 1))
            yield replace(point, fewest=_put(point.fewest, s, count))
            return
        for s in range(problem.stages):
            if point.split[s] is None and not problem.costless(s, boundaries[s], boundaries[s + 1]):
                for own in (True, False):
                    yield replace(point, split=(*point.split[:s], own, *point.split[s + 1 :]))
                return


def _put(counts: tuple[int, ...], s: int, count: int) -> tuple[int, ...]:
    return (*counts[:s], count, *counts[s + 1 :])
