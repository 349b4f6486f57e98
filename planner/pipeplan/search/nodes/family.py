"""Nodes of one choice of device groups: boxes of in-flight counts, and single schedule families.

Where in-flight counts of 1F1B are free, they are searched by a tree over boxes of counts::

    memory of the least counts, warm-up of the most      bound on all counts of the box
    the partition found has memory for k                 if k is the most: halve the widest range,
                                                         else branch at one stage s: at most k_s, or more

With at most k_s, the bound has the shorter warm-up. With more, that partition does not fit any more. Before a box is
split, the critical path of the partition found is weakened to an inequality for all counts of the box
(`search.visits`). While such paths exclude the partitions found, the box is solved with them instead of split; its
parts inherit them. When few counts are left, each becomes a node of its own: a `PartitionsNode` if its partitions are
few, else a `FamilyNode`.

For a `FamilyNode`, the exact dynamic programme first solves the relaxed partition problem. Then a solver adds all path
cuts found so far. Each partition found is simulated. The critical path of its schedule is an inequality for all
partitions of the same device groups, micro-batch count and family (path cuts of the partition problem).

Where transfers of several pairs of devices queue at a card, the path cut of a partition may be weaker than its
simulation. Then the node branches over the other partitions. So bound and simulation meet after finitely many steps,
if there is time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from pipeplan.core.cluster import Overlap
from pipeplan.costs.chain import Boundaries
from pipeplan.search.branch_and_bound import Node, PlanSearch, Step
from pipeplan.search.nodes.partitions import PartitionsNode, critical, recomputes_least, simulate
from pipeplan.search.path_cuts import find_path_cut
from pipeplan.search.regimes import REGIMES
from pipeplan.search.space.candidates import Candidate, partition_problem
from pipeplan.search.space.in_flight import InFlightBox, free_family
from pipeplan.search.visits import VisitedPath, find_visited_path
from pipeplan_formulations import partition
from pipeplan_formulations.common.report import Stop
from pipeplan_formulations.partition import ChainPartition, PathCut
from pipeplan_formulations.partition.listing import few

FIRST_SLICE = 2.0
"""Seconds of a solver's first step; doubled each time they were not enough."""
CELLS = REGIMES.path_cells.most
"""Most stages x layers of a problem with path cuts: beyond, a solver takes minutes to begin."""


@dataclass
class FamilyNode(Node):
    """Node of all partitions of a candidate."""

    bound: int
    candidate: Candidate
    relaxed: bool = False
    slice: float = FIRST_SLICE
    best: Boundaries | None = None
    paths: list[PathCut] = field(default_factory=list)

    @property
    def rank(self) -> tuple[int, ...]:
        """Nodes with the most path cuts first, then those with the fewest micro-batches in flight."""
        return (-len(self.paths), sum(self.candidate.in_flight))

    def advance(self, search: PlanSearch) -> Step[Node]:
        """One solve and one simulation; the node stays open unless it is infeasible, solved or cannot be improved."""
        slice_ = min(search.left, self.slice)
        steps = self.candidate.cut_by_paths
        problem = self.candidate.problem.with_paths(tuple(self.paths) if steps else ())
        backend = search.backend if self.relaxed else "exact"
        limits, most = search.precise(slice_), search.cutoff
        if self.relaxed and backend != "exact" and problem.stages * problem.layers > CELLS:
            return Step.leave(self.bound)
        report = partition.solve(problem, limits, hint=self.best, backend=backend, cutoff=most)
        before = self.bound
        if not self.learn(report):
            return Step.nothing()
        # Leave a node that is fathomed, or whose plan can no longer be simulated and written in time.
        no_gain = search.fathoms(self.bound) if report.solution is None else not search.affords(self.candidate)
        if no_gain:
            return Step.leave(self.bound)
        # Simulate the partition found; its critical path may be a new cut.
        first, self.relaxed = not self.relaxed, True
        new_cut = self._simulate(search, report.solution) if report.solution is not None else False
        if report.solution is not None and search.value is not None and search.value <= self.bound:
            return Step.leave(self.bound)
        # Solve again after the first, relaxed solve, with a new cut, with a better bound, or with more time.
        if first or new_cut or self.bound > before:
            return Step.split([self])
        if report.stop is Stop.TIME and slice_ >= self.slice and search.left > 0:
            self.slice *= 2
            return Step.split([self])
        # Solved, but simulation takes longer and adds no cut: exclude this partition and branch over the others.
        if report.solution is not None and report.stop is not Stop.TIME:
            others = list(self._others(report.solution))
            if recomputes_least(self.candidate, report.solution):
                return Step.split(others)
            return Step.leave(max(self.bound, problem.evaluate(report.solution, optimistic=True)), others)
        return Step.leave(self.bound)

    def _others(self, boundaries: Boundaries) -> Iterator["FamilyNode"]:
        """Yield nodes for all partitions except one that was simulated and whose path cut is not new.

        In the s-th pair of nodes, boundary s lies before or behind that of the excluded partition, and the boundaries
        before s are equal. Any other partition lies in the pair of the first boundary in which it differs.
        """
        where = self.candidate.where
        for s, b in list(enumerate(boundaries))[1:-1]:
            before, behind = where.copy(), where.copy()
            before[:s, b - 1] = False
            behind[s:, b] = False
            for mask in (before, behind):
                yield replace(self, candidate=replace(self.candidate, where=mask), best=None, paths=list(self.paths))
            where = where.copy()
            where[:s, b] = where[s:, b - 1] = False

    def _simulate(self, search: PlanSearch, boundaries: Boundaries) -> bool:
        """Simulate and submit a partition; True if its critical path is a new inequality."""
        self.best = boundaries
        simulate(search, self.candidate, boundaries)
        if not self.candidate.cut_by_paths:
            return False
        cut = critical(search, self.candidate, boundaries, find_path_cut)
        if cut in self.paths:
            return False
        self.paths.append(cut)
        return True


def family_node(candidate: Candidate, bound: int, paths: Iterable[PathCut] = ()) -> Node:
    """Return the node of a candidate: its partitions are listed if they are few.

    ``bound`` and the path cuts of ``paths`` hold for all of them.
    """
    if few(candidate.problem):
        return PartitionsNode(bound, candidate, tuple(paths))
    return FamilyNode(max(bound, candidate.lower_bound), candidate, paths=list(paths))


@dataclass
class InFlightNode(Node):
    """Device groups, a micro-batch size and a box of in-flight counts.

    ``named``: families with counts in the box, at least one.
    """

    bound: int
    named: tuple[Candidate, ...]
    box: InFlightBox
    paths: tuple[VisitedPath, ...] = ()
    best: Boundaries | None = None

    @property
    def rank(self) -> tuple[int, ...]:
        """Pipelines with few stages first, then small boxes."""
        return (1, self.named[0].depth, self.box.size)

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Bound the box, simulate the partition found with the most micro-batches in flight that fit, and split.

        The box is not split while paths exclude the partitions found: then a solver takes all paths into account.
        """
        least = self._candidate(self.box.low)
        problem = partition_problem(least, self.box.low, self.box.high).with_paths(self._cuts(self.paths))
        limits, most = search.precise(search.left), search.cutoff
        again = self.best is not None
        if again:
            limits = search.precise(min(search.left, FIRST_SLICE))
        backend = search.backend if again and not few(problem) else "listing"
        report = partition.solve(problem, limits, hint=self.best, backend=backend, cutoff=most)
        if not self.learn(report):
            return Step.nothing()
        found = self.best = report.solution
        fullest = None
        if found is not None and not self._excludes(search, problem, found):
            fullest = least.with_max_in_flight(search.cluster_of(least), found, self.box) or least
            search.submit_all([fullest, *self.named], found)
        if search.fathoms(self.bound):
            return Step.leave(self.bound)
        if search.left <= 0:
            self.best = None
            return Step.split([self])
        if found is not None and report.stop is not Stop.TIME and self._takes_paths(search, problem):
            new = self._find_paths(search, [least, *([fullest] if fullest is not None else [])], found)
            if (new or not again) and self._excludes(search, problem.with_paths(self._cuts(self.paths)), found):
                return Step.split([self])
        if self.box.few:
            return Step.split([self._family(self._candidate(counts)) for counts in self.box.counts()])
        parts = self.box.halves()
        if fullest is not None and found is not None and fullest.in_flight != self.box.high:
            stage = self._shortest(fullest.in_flight, least, found)
            parts = self.box.split(stage, fullest.in_flight[stage])
        return Step.split([replace(self, box=part, best=None) for part in parts])

    def _takes_paths(self, search: PlanSearch, problem: ChainPartition) -> bool:
        """Return True if a solver takes path cuts of the box into account."""
        candidate = self.named[0]
        copies = candidate.chain.overlap is Overlap.COPY and candidate.cut_by_paths
        solves = few(problem) or (search.backend != "exact" and problem.stages * problem.layers <= CELLS)
        return copies and solves and search.affords(candidate)

    def _excludes(self, search: PlanSearch, problem: ChainPartition, boundaries: Boundaries) -> bool:
        """Return True if the paths of the box exclude a partition from those that beat the incumbent."""
        return bool(problem.paths) and search.fathoms(problem.evaluate(boundaries, optimistic=True))

    def _find_paths(self, search: PlanSearch, candidates: list[Candidate], boundaries: Boundaries) -> bool:
        """Add the critical paths of a partition that are inequalities of the whole box; True if some are new."""
        before = self.paths
        for candidate in candidates:
            path = critical(search, candidate, boundaries, find_visited_path)
            if path not in self.paths and self._cuts([path]):
                self.paths = (*self.paths, path)
        return self.paths != before

    def _cuts(self, paths: Iterable[VisitedPath]) -> tuple[PathCut, ...]:
        """The path cuts that hold for all counts of the box."""
        cuts = (path.within(self.box.low, self.box.high) for path in paths)
        return tuple(dict.fromkeys(cut for cut in cuts if cut is not None))

    def _family(self, candidate: Candidate) -> Node:
        """The node of one vector of counts, with the paths that hold there."""
        cuts = (path.within(candidate.in_flight, candidate.in_flight) for path in self.paths)
        known = list(dict.fromkeys(cut for cut in cuts if cut is not None))
        return family_node(candidate, self.bound, known)

    def _candidate(self, counts: tuple[int, ...]) -> Candidate:
        """1F1B with these counts, under the name of the family if it is a named one."""
        known = (each for each in self.named if each.in_flight == counts)
        return next(known, replace(self.named[0], family=free_family(counts)))

    def _shortest(self, counts: tuple[int, ...], candidate: Candidate, boundaries: Boundaries) -> int:
        """The stage with the most missing warm-up, in time of its forwards."""
        spans = enumerate(pairwise(boundaries))
        forward = [int(candidate.chain.forward[s, a:b].sum()) for s, (a, b) in spans]
        lacking = [most - count for most, count in zip(self.box.high, counts, strict=True)]
        return max(range(len(counts)), key=lambda s: (lacking[s] > 0, lacking[s] * forward[s]))
