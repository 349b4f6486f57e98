"""Best-first search over boxes of choices by logic-based Benders decomposition.

The method is that of Hooker and Ottosson (Mathematical Programming 96, 2003). The partition problem is the master
problem and contains orders as inequalities only. The schedule problem, solved by CP-SAT, is the subproblem: it gives
the value of the master's partition P. Its bound becomes a cut on all partitions for which the proof holds as well.

::

    box of choices ──partition problem──▶ P ──schedule problem──▶ its best order, and a bound
          ▲                                                             │
          └── the rest, as disjoint boxes ◀── box around P, closed ◀────┘
"""

import time
from dataclasses import dataclass, replace

import numpy as np

from pipeplan_formulations import partition, schedule
from pipeplan_formulations.common.branch_and_bound import BranchAndBound, OnProgress, Step
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Progress, Report, Status, Stop
from pipeplan_formulations.joint.box import Box, grown
from pipeplan_formulations.joint.branch import branches, finished
from pipeplan_formulations.joint.instance import JointPipeline, Solution
from pipeplan_formulations.joint.lists import Lists
from pipeplan_formulations.joint.relaxed import chained, relaxed
from pipeplan_formulations.partition import Boundaries
from pipeplan_formulations.partition.windows import windows
from pipeplan_formulations.schedule import Orders, PipelineSchedule, long_steps, lower_bound

NAME = "benders"
FIRST_SLICE = 0.5
"""Initial seconds of CP-SAT for a partition; doubled each time they were not enough."""
ENOUGH = 4.0
"""Seconds after which list schedules alone hardly improve."""
TRIES = 4
"""Time limit for extending a proof by the solver, in multiples of the time of the partition's own proof."""


@dataclass
class BoxNode:
    """Search node: a box of choices, and a lower bound on all of them."""

    bound: int
    box: Box
    rank: tuple[int, ...] = ()


@dataclass
class _Known:
    """Results on the box of one partition.

    ``bound``: lower bound. ``slice``: seconds for the solver's next try. ``wall``: seconds of the last one. ``solved``:
    orders that solve the relaxation. ``beyond``: True if no solver can raise the bound.
    """

    bound: int
    slice: float = FIRST_SLICE
    wall: float = 0.0
    solved: Orders | None = None
    beyond: bool = False


class Search(BranchAndBound[BoxNode, Solution]):
    """Branch-and-bound over all choices of a problem.

    A subclass may override ``improve`` and ``cutoff`` to evaluate solutions by another objective.

    Parameters
    ----------
    problem : JointPipeline
    limits : Limits
    on_progress : callable
        See `OnProgress`.
    """

    NEWEST_FIRST = True

    def __init__(
        self,
        problem: JointPipeline,
        limits: Limits,
        on_progress: OnProgress = lambda *_: None,
    ) -> None:
        super().__init__(limits, on_progress)
        self.problem = problem
        self._known: dict[Box, _Known] = {}
        self._lists = Lists(problem, self._finish, lambda: self.cutoff, lambda: self.left)
        self.push(BoxNode(0, Box.whole(problem)))

    @property
    def left(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, super().left)

    def propose(self, boundaries: Boundaries, seconds: float) -> None:
        """Search the best orders of one partition only; other open nodes are left as they are."""
        self.deadline = time.monotonic() + seconds
        others = self._heap, self._rest, self._current
        self._heap, self._rest = [], None
        try:
            self.push(BoxNode(0, Box.whole(self.problem).at(boundaries)))
            while self.open and self.left > 0:
                self.step()
        finally:
            self._heap, self._rest, self._current = others

    def advance(self, node: BoxNode) -> Step[BoxNode]:
        """Bound the box, find its best partition, evaluate that, and divide the box around it."""
        # lower bound of the box's relaxation
        box = node.box
        instance = relaxed(self.problem, box)
        if instance is None:
            return Step.nothing()
        bound = max(node.bound, lower_bound(instance))
        if self.fathoms(bound):
            return Step.leave(bound)
        # the box without the boundaries that the partition problem excludes
        master = chained(self.problem, box, instance.limit)
        open_ = windows(master).open
        if not open_[0, 0]:
            return Step.nothing()
        ends = [np.flatnonzero(row) for row in open_]
        low, high = tuple(int(row[0]) for row in ends), tuple(int(row[-1]) for row in ends)
        box = replace(box, low=low, high=high)
        if box.single:
            return self._around(box, low, max(bound, master.evaluate(low, optimistic=True)))
        # its best partition
        report = partition.solve(master, replace(self.limits, time=self.left), backend="exact", cutoff=self.cutoff)
        if report.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt
        bound = max(bound, report.bound)
        if report.status is Status.INFEASIBLE:
            return Step.nothing()
        if self.fathoms(bound):
            return Step.leave(bound)
        if report.solution is None:  # the time is over
            return Step.split([BoxNode(bound, box)])
        return self._around(box, report.solution, bound)

    def _around(self, box: Box, boundaries: Boundaries, bound: int) -> Step[BoxNode]:
        """Evaluate a partition by list schedules and the solver, and divide the box around it."""
        point = box.at(boundaries)
        instance = relaxed(self.problem, point)
        assert instance is not None
        known = self._known.setdefault(point, _Known(bound))
        known.bound = max(known.bound, bound, lower_bound(instance))
        self._lists.run(boundaries)
        if not (self.fathoms(known.bound) or known.solved or known.beyond):
            self._schedule(point, instance, known)
        if box.single:
            return self._single(point, known)
        inner, proved = self._grown(point, box, bound, known)
        return Step.split([*(BoxNode(bound, part) for part in box.without(inner)), BoxNode(proved, inner)])

    def _grown(self, point: Box, box: Box, bound: int, known: _Known) -> tuple[Box, int]:
        """Box around a partition with a proved bound, and that bound.

        The bound is the cutoff if the partition is fathomed, otherwise at least half of the partition's gain over the
        whole box's bound.
        """
        if known.bound <= bound:
            return point, known.bound
        cutoff = self.cutoff
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
            report = self._solved(instance, min(known.wall, self.left))
            proved[wider] = max(proved[wider], report.bound)
            return proved[wider] >= target

        inner = grown(point, box, by_bounds, lambda: self.left > 0)
        if closing and inner == point and known.wall > 0:  # the solver proved it, so only the solver can extend it
            end = time.monotonic() + min(TRIES * known.wall, self.left)
            inner = grown(point, box, by_solver, lambda: time.monotonic() < end)
        return inner, proved[inner]

    def _finish(self, boundaries: Boundaries, orders: Orders) -> int | None:
        """Record the solution of a partition with these orders, and return its value; None if it does not fit."""
        found = finished(self.problem, boundaries, orders)
        if found is None:
            return None
        value, (choice, own) = found
        if not self.fathoms(value):
            self.improve((choice, own), value)
        return value

    def _schedule(self, point: Box, instance: PipelineSchedule, known: _Known) -> None:
        """Run the solver on a partition for one slice of time."""
        slice_ = min(known.slice, self.left)
        if slice_ <= 0:
            return
        report = self._solved(instance, slice_)
        known.bound, known.wall = max(known.bound, report.bound), report.wall
        if report.solution is not None:
            self._finish(point.low, report.solution)
            if report.status is Status.OPTIMAL:
                known.solved = report.solution
        known.beyond = report.stop in (Stop.EXHAUSTED, Stop.ERROR)
        known.beyond |= report.backend == long_steps.NAME and slice_ >= ENOUGH
        if slice_ >= known.slice:
            known.slice *= 2

    def _solved(self, instance: PipelineSchedule, seconds: float) -> Report[Orders]:
        report = schedule.solve(instance, replace(self.limits, time=seconds, gap=0.0))
        if report.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt
        return report

    def _single(self, point: Box, known: _Known) -> Step[BoxNode]:
        """Step on a box of one partition: keep it open until solved; split it if its relaxation is not exact."""
        if known.beyond:
            return Step.leave(known.bound)
        if known.solved is None:
            return Step.split([BoxNode(known.bound, point)])
        value = self._finish(point.low, known.solved)
        parts = [] if value is None or value <= known.bound else list(branches(self.problem, point, known.solved))
        return Step.split([BoxNode(known.bound, part) for part in parts]) if parts else Step.leave(known.bound)


def solve(problem: JointPipeline, limits: Limits, on_progress: Progress | None = None) -> Report[Solution]:
    """Find the joint optimum.

    Parameters
    ----------
    problem : JointPipeline
    limits : Limits
    on_progress : callable, optional
        See `Progress`.
    """
    clock = Clock(limits)
    search = Search(problem, limits, lambda value, bound, _: on_progress(value, bound) if on_progress else None)
    search.run()
    return search.report(clock.wall, NAME)
