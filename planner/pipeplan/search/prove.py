"""Best-first search over candidates that closes a gap from two sides.

::

    bound    ─────────▲───────▲──▲────▲▲▲═══════════  optimum (or the gap that was asked for)
    plan     ▼──────────▼───────────▼────═══════════

The candidate with the least bound is advanced one step: first the exact dynamic programme on the relaxed partition
problem, then a solver with every path cut known so far. The partition found is simulated; the critical path of its
schedule is an inequality that all partitions of the same depth, micro-batch count and family obey (equation (6) of the
partition problem), so bound and simulation meet after finitely many steps. A candidate whose bound
reaches the incumbent is never opened.
"""

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipeplan.chain import Boundaries
from pipeplan.cluster import Cluster
from pipeplan.job import Objective
from pipeplan.paths import path_cut
from pipeplan.pricing import assemble
from pipeplan.search.candidates import Candidate
from pipeplan.search.judge import Judged, judge
from pipeplan.simulate import simulate
from pipeplan_formulations import partition
from pipeplan_formulations.partition import PathCut
from pipeplan_formulations.report import Limits, Status, Stop

Watch = Callable[[int | None, int, int], None]
"""Called with the incumbent's value (None before there is one), the bound, and the number of open candidates."""

FIRST_SLICE = 2.0
"""Seconds a solver gets for one step of one candidate at first; doubled each time it was not enough."""


@dataclass(order=True)
class _Open:
    """A candidate that may still hold the best plan."""

    bound: int
    number: int
    candidate: Candidate = field(compare=False)
    relaxed: bool = field(default=False, compare=False)
    slice: float = field(default=FIRST_SLICE, compare=False)
    best: Boundaries | None = field(default=None, compare=False)


@dataclass
class Prover:
    """The state of one search.

    Attributes
    ----------
    incumbent : Judged or None
        The best plan so far.
    stop : Stop
        Why the search ended.
    opened : int
        How many candidates were advanced at all.
    """

    cluster: Cluster
    candidates: Sequence[Candidate]
    limits: Limits
    backend: str = "cpsat"
    watch: Watch = lambda *_: None
    incumbent: Judged | None = None
    stop: Stop = Stop.OPTIMALITY
    opened: int = 0
    _heap: list[_Open] = field(default_factory=list)
    _settled: int | None = None
    _offers: list[tuple[str, int]] = field(default_factory=list)
    _paths: dict[tuple[int, int, str], list[PathCut]] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    @property
    def bound(self) -> int:
        """No plan of the searched space beats this."""
        known = [self._heap[0].bound] if self._heap else []
        known += [self._settled] if self._settled is not None else []
        known += [self.incumbent.value] if self.incumbent else []
        return min(known, default=0)

    def offer(self, judged: Judged) -> None:
        """A plan that somebody found."""
        self._offers.append((judged.label, judged.value))
        if self.incumbent is None or judged.value < self.incumbent.value:
            self.incumbent = judged
            self._tell()

    def __post_init__(self) -> None:
        self._heap = [_Open(candidate.floor, number, candidate) for number, candidate in enumerate(self.candidates)]
        heapq.heapify(self._heap)

    def run(self) -> None:
        """Search until the gap is closed or the limits say stop."""
        try:
            while self._heap and not self._good_enough():
                if self._left() <= 0:
                    self.stop = Stop.TIME
                    break
                self._advance(heapq.heappop(self._heap))
                self._tell()
        except KeyboardInterrupt:
            self.stop = Stop.INTERRUPT
        if self.stop is Stop.OPTIMALITY and self.incumbent and self.bound < self.incumbent.value:
            self.stop = Stop.GAP

    def ranking(self, most: int = 5) -> tuple[tuple[str, int], ...]:
        """The best plan of each candidate that was simulated, best first: label and value."""
        best: dict[str, int] = {}
        for label, value in self._offers:
            best[label] = min(value, best.get(label, value))
        return tuple(sorted(best.items(), key=lambda item: item[1])[:most])

    def _left(self) -> float:
        return self.limits.time - (time.monotonic() - self._began)

    def _good_enough(self) -> bool:
        if self.incumbent is None:
            return False
        return self.incumbent.value - self.bound <= self.limits.gap * self.incumbent.value

    def _tell(self) -> None:
        self.watch(self.incumbent.value if self.incumbent else None, self.bound, len(self._heap))

    def _advance(self, node: _Open) -> None:
        """One step of one candidate; it goes back on the heap unless it is infeasible, solved or beyond help."""
        candidate = node.candidate
        paths = self._paths.setdefault((candidate.depth, candidate.micro_batches, candidate.family.name), [])
        self.opened += not node.relaxed
        slice_ = min(self._left(), node.slice)
        limits = Limits(slice_, self.limits.gap, self.limits.workers, self.limits.seed)
        problem = candidate.problem.with_paths(tuple(paths) if candidate.objective is Objective.STEP else ())
        backend = self.backend if node.relaxed else "exact"
        try:
            report = partition.solve(problem, limits, hint=node.best, backend=backend)
        except KeyboardInterrupt:
            heapq.heappush(self._heap, node)
            raise
        if report.status is Status.INFEASIBLE:
            return
        first, node.relaxed = not node.relaxed, True
        grown = report.bound > node.bound
        node.bound = max(node.bound, report.bound)
        learned = self._simulate(node, report.solution, paths) if report.solution is not None else False
        if report.solution is not None and self._is_solved(node):
            self._settle(node.bound)
        elif first or grown or learned:
            heapq.heappush(self._heap, node)
        elif report.status is not Status.OPTIMAL and slice_ >= node.slice and self._left() > 0:
            node.slice *= 2
            heapq.heappush(self._heap, node)
        else:
            self._settle(node.bound)
        if report.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt

    def _simulate(self, node: _Open, boundaries: Boundaries, paths: list[PathCut]) -> bool:
        """Judge a partition; True if its critical path is a new inequality."""
        node.best = boundaries
        judged = judge(self.cluster, node.candidate, boundaries)
        self.offer(judged)
        if node.candidate.objective is not Objective.STEP:
            return False
        pipeline = assemble(node.candidate.chain, self.cluster, boundaries)
        schedule = node.candidate.family.write(node.candidate.replicas, node.candidate.micro_batches)
        cut = path_cut(simulate(schedule, pipeline, share=False), pipeline, schedule)
        if cut in paths:
            return False
        paths.append(cut)
        return True

    def _is_solved(self, node: _Open) -> bool:
        return self.incumbent is not None and self.incumbent.value <= node.bound

    def _settle(self, bound: int) -> None:
        self._settled = bound if self._settled is None else min(self._settled, bound)
