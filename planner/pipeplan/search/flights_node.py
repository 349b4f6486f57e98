"""1F1B with in-flight counts that are a choice: a tree over boxes of counts.

::

    memory of the least counts, warm-up of the most      bound on all counts of the box
    the partition found has room for k                   is k the most?  then halve the widest range,
                                                         else ask for at most k_s, or for more, at one stage s

With at most k_s, equation (8) knows of the shorter warm-up; with more, that partition does not fit as it stands. Few
counts that are left become a `FamilyNode` each.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

from pipeplan.chain import Boundaries
from pipeplan.search.candidates import Candidate, partition_problem
from pipeplan.search.family_node import FamilyNode
from pipeplan.search.filled import fuller
from pipeplan.search.flights import Box, free_family
from pipeplan.search.prove import Node, Prover, Step
from pipeplan_formulations import partition


@dataclass
class FlightsNode(Node):
    """A shape, its micro-batch size and a box of counts. ``named``: families with such counts, one at least."""

    bound: int
    named: tuple[Candidate, ...]
    box: Box

    @property
    def rank(self) -> tuple[int, ...]:
        """Few counts first."""
        return (1, self.named[0].depth, self.box.size)

    def advance(self, prover: Prover) -> Step[Node]:
        """Bound the box, simulate the partition found with as many in flight as fit, and split."""
        least = self._candidate(self.box.low)
        problem = partition_problem(least, self.box.low, self.box.high)
        report = partition.solve(problem, prover.precise(prover.left), backend="exact", cutoff=prover.cutoff)
        if not self.learn(report):
            return Step.nothing()
        fullest = None
        if report.solution is not None:
            fullest = fuller(prover.cluster, least, report.solution, self.box) or least
            prover.submit_all([fullest, *self.named], report.solution)
        if prover.fathoms(self.bound):
            return Step.leave(self.bound)
        if prover.left <= 0:
            return Step.split([self])
        if self.box.few:
            each = [self._candidate(counts) for counts in self.box.counts()]
            return Step.split([FamilyNode(max(self.bound, candidate.floor), candidate) for candidate in each])
        parts = self.box.halves()
        if fullest is not None and report.solution is not None and fullest.in_flight != self.box.high:
            stage = self._shortest(fullest.in_flight, least, report.solution)
            parts = self.box.split(stage, fullest.in_flight[stage])
        return Step.split([replace(self, box=part) for part in parts])

    def _candidate(self, counts: tuple[int, ...]) -> Candidate:
        """1F1B with these counts, under the name that it has."""
        known = (each for each in self.named if each.in_flight == counts)
        return next(known, replace(self.named[0], family=free_family(counts)))

    def _shortest(self, counts: tuple[int, ...], candidate: Candidate, boundaries: Boundaries) -> int:
        """The stage whose forwards lack most time that a longer warm-up would hide."""
        spans = enumerate(pairwise(boundaries))
        forward = [int(candidate.chain.forward[s, a:b].sum()) for s, (a, b) in spans]
        lacking = [most - count for most, count in zip(self.box.high, counts, strict=True)]
        return max(range(len(counts)), key=lambda s: (lacking[s] > 0, lacking[s] * forward[s]))
