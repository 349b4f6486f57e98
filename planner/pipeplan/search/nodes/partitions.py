"""Nodes of a candidate with few partitions: all of them listed, each with its own bound.

::

    bound    38   39   40   41   41   44 …        partitions of a candidate, least bound first
             ▲
             simulated: its bound becomes its value, and its critical path raises the bounds of the others

Every step simulates one partition, so a node is proved by exhaustion, even where no path cut is as long as the
simulation.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from pipeplan.core.job import Objective
from pipeplan.costs.assembly import assemble
from pipeplan.costs.chain import Array, Boundaries
from pipeplan.search.branch_and_bound import Node, PlanSearch, Step
from pipeplan.search.evaluate import EvaluatedPlan, evaluate
from pipeplan.search.folded_paths import FoldedPaths, has_folded_paths
from pipeplan.search.path_cuts import find_path_cut
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.shared_links import surplus
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.partition import PathCut
from pipeplan_formulations.partition.listing import PartitionList
from pipeplan_formulations.partition.spans import NEVER

Path = TypeVar("Path")


@dataclass
class PartitionsNode(Node):
    """Node of all partitions of a candidate that are not simulated yet, or of those with given edges."""

    bound: int
    candidate: Candidate
    paths: tuple[PathCut, ...] = ()
    simulated: int = 0
    edges: Array | None = field(default=None, repr=False)
    folded: FoldedPaths | None = field(default=None, repr=False)
    _every: PartitionList | None = field(default=None, repr=False)

    @property
    def rank(self) -> tuple[int, ...]:
        """Nodes with the most simulations first, then those with the fewest micro-batches in flight."""
        return (-self.simulated, sum(self.candidate.in_flight))

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Simulate the partition of least bound, unless that bound is reached; the node stays open for the others."""
        if self._every is None:
            try:
                clock = Clock(Limits(max(search.left, 0.0)))
                self._every = PartitionList(self.candidate.problem.with_paths(self.paths), clock, self.edges)
            except OutOfTimeError:
                return Step.split([self])
        low = self._every.low
        if not len(low):
            return Step.nothing()
        index = int(low.argmin())
        if low[index] >= NEVER:
            return Step.nothing()
        before, self.bound = self.bound, max(self.bound, int(low[index]))
        if self.bound > before and not search.fathoms(self.bound):  # other nodes may come first
            return Step.split([self])
        if search.fathoms(self.bound) or not search.affords(self.candidate):
            return Step.leave(self.bound)
        boundaries, left = self._every.boundaries(index), self.bound
        evaluated = simulate(search, self.candidate, boundaries)
        others = np.delete(self._every.low, index)
        if search.fathoms(int(others.min(initial=NEVER))):
            pass  # no path has to close them
        elif self.candidate.cut_by_paths:
            self._every.add(critical(search, self.candidate, boundaries, find_path_cut))
        elif has_folded_paths(self.candidate):
            self.folded = self.folded or FoldedPaths(self.candidate, search.cluster_of(self.candidate))
            self._every.add_shares(self.folded.find(boundaries))
        self.simulated += 1
        # Its value, if its recomputation is the least: else its bound stays and counts as unexamined. What fits on
        # devices with several stages is known once these are priced.
        exact = recomputes_least(self.candidate, boundaries)
        fits = self.candidate.unfolding is None or search.outside(evaluated) is None
        self._every.low[index] = max(evaluated.value, left) if exact and fits else NEVER
        self.bound = max(self.bound, int(self._every.low.min()))
        return Step.split([self]) if exact else Step.leave(left, [self])


def simulate(search: PlanSearch, candidate: Candidate, boundaries: Boundaries) -> EvaluatedPlan:
    """Simulate and submit a partition, and 1F1B with more micro-batches in flight where its bound is better."""
    with search.pace.simulating(candidate):
        evaluated = evaluate(search.cluster_of(candidate), candidate, boundaries)
    search.submit(evaluated)
    for other in candidate.with_more_in_flight(search.cluster_of(candidate), boundaries):
        if search.value is None or other.problem.evaluate(boundaries) < search.value:
            search.submit(evaluate(search.cluster_of(other), other, boundaries))
    return evaluated


def critical(
    search: PlanSearch,
    candidate: Candidate,
    boundaries: Boundaries,
    find: Callable[..., Path],
) -> Path:
    """Return what ``find`` makes of the critical path of a partition: `find_path_cut` or `find_visited_path`.

    In a long run the path ends with stage 0, whose next step begins there.
    """
    pipeline = assemble(candidate.chain, search.cluster_of(candidate), boundaries, candidate.recompute(boundaries))
    slower = partial(surplus, search.cluster_of(candidate), candidate.chain)
    to = 0 if candidate.objective is Objective.PERIOD else None
    return find(candidate.schedule(pipeline), candidate.certain(pipeline), slower, to=to)


def recomputes_least(candidate: Candidate, boundaries: Boundaries) -> bool:
    """Return True if the optimistic recomputation of a partition is the chosen one; else its bound is not exact."""
    recomputing = candidate.problem.recomputing
    least, chosen = (recomputing.of_partition(boundaries, optimistic) for optimistic in (True, False))
    return bool((least == chosen).all())
