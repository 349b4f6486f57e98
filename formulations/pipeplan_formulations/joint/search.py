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
from pipeplan_formulations.common.report import Limits, Report, Status, Stop
from pipeplan_formulations.joint.box import Box
from pipeplan_formulations.joint.branch import branches
from pipeplan_formulations.joint.finished import finished
from pipeplan_formulations.joint.grow import grown
from pipeplan_formulations.joint.instance import Choice, JointPipeline
from pipeplan_formulations.joint.lists import Lists
from pipeplan_formulations.joint.relaxed import chained, relaxed
from pipeplan_formulations.partition import Boundaries
from pipeplan_formulations.partition.windows import windows
from pipeplan_formulations.schedule import Orders, PipelineSchedule, cyclic, lower_bound

FIRST_SLICE = 0.5
"""Seconds that CP-SAT gets for a partition at first; doubled each time they were not enough."""
MANY = 1200
"""Operations beyond which steps are made of a pattern that repeats, as models of them all take long to build."""
ENOUGH = 4.0
"""Seconds in which such a step becomes about as good as it will."""
TRIES = 4
"""How often as long as a partition's proof took other partitions are tried to be proved with it."""

Offer = Callable[[Choice, Orders, int], None]
"""Hears of a solution and its value by (13)."""


@dataclass
class _Known:
    """What was learned of one partition's box.

    A bound; the slice of time that the solver's next try gets, and how long the last one took; the orders that solve
    its relaxation; whether no solver can raise the bound.
    """

    bound: int
    slice: float = FIRST_SLICE
    wall: float = 0.0
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
        self._lists = Lists(problem, self._finish, cutoff, lambda: self._left)
        self._end = 0.0
        self._push(Box.whole(problem) if box is None else box, 0)

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
        self._lists.tried |= alone._lists.tried

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
        self._lists.run(boundaries)
        if not (self._closed(known.bound) or known.solved or known.beyond):
            self._schedule(point, instance, known)
        if box.single:
            yield from self._single(point, known)
            return
        inner, proved = self._grown(point, box, bound, known)
        for part in box.without(inner):
            yield part, bound
        yield inner, proved

    def _grown(self, point: Box, box: Box, bound: int, known: _Known) -> tuple[Box, int]:
        """A box around a partition for which the same is proved, or half as much as was gained, and its bound."""
        if known.bound <= bound:
            return point, known.bound
        cutoff = self._cutoff()
        closing = cutoff is not None and known.bound >= cutoff
        target = cutoff if cutoff is not None and closing else (bound + known.bound + 1) // 2
        proved = {point: known.bound}

        def by_bounds(wider: Box) -> bool:
            instance = relaxed(self.problem, wider)
            proved[wider] = target if instance is None else lower_bound(instance)
            return proved[wider] >= target

        def by_solver(wider: Box) -> bool:
            if by_bounds(wider):
                return True
            instance = relaxed(self.problem, wider)
            assert instance is not None
            report = self._solved(instance, min(known.wall, self._left))
            proved[wider] = max(proved[wider], report.bound)
            return proved[wider] >= target

        inner = grown(point, box, by_bounds, lambda: self._left > 0)
        if closing and inner == point and known.wall > 0:  # proved by the solver, so it takes the solver to go on
            end = time.monotonic() + min(TRIES * known.wall, self._left)
            inner = grown(point, box, by_solver, lambda: time.monotonic() < end)
        return inner, proved[inner]

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
        report = self._solved(instance, slice_)
        known.bound, known.wall = max(known.bound, report.bound), report.wall
        if report.solution is not None:
            self._finish(point.low, report.solution)
            if report.status is Status.OPTIMAL:
                known.solved = report.solution
        known.beyond = report.stop in (Stop.EXHAUSTED, Stop.ERROR) or (_crowded(instance) and slice_ >= ENOUGH)
        if slice_ >= known.slice:
            known.slice *= 2

    def _solved(self, instance: PipelineSchedule, seconds: float) -> Report[Orders]:
        limits = replace(self._limits, time=seconds, gap=0.0)
        if _crowded(instance):
            report = cyclic.solve(instance, limits)
        else:
            report = schedule.solve(instance, limits, backend=self._backend)
        if report.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt
        return report

    def _single(self, point: Box, known: _Known) -> Iterator[tuple[Box, int]]:
        """A box of one partition: open until it is solved; where its relaxation is not exact, it is split."""
        if known.beyond:
            self._settle(known.bound)
            return
        if known.solved is None:
            yield point, known.bound
            return
        value = self._finish(point.low, known.solved)
        parts = [] if value is None or value <= known.bound else list(branches(self.problem, point, known.solved))
        if not parts:
            self._settle(known.bound)
        for part in parts:
            yield part, known.bound


def _crowded(instance: PipelineSchedule) -> bool:
    return instance.micro_batches * sum(len(instance.kinds(s)) for s in range(instance.stages)) > MANY
