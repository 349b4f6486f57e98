"""A shape of the pipeline, with its schedule left open: one dynamic programme bounds all families at once.

What it relaxes: the memory of the family that holds least, and the warm-up of the one that holds most.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeplan.search.candidates import Candidate, partition_problem
from pipeplan.search.family_node import FamilyNode
from pipeplan.search.flights import Box
from pipeplan.search.flights_node import FlightsNode
from pipeplan.search.prove import Node, Prover, Step
from pipeplan.search.space import Space
from pipeplan.structure import Groups
from pipeplan_formulations import partition


@dataclass
class ShapeNode(Node):
    """A shape and a micro-batch size; below it lie the 1F1B families and the others, and then one node a family.

    ``alternating``: only 1F1B families, or only the others; all if None.
    """

    bound: int
    space: Space
    groups: Groups
    size: int
    alternating: bool | None = None

    @property
    def rank(self) -> tuple[int, ...]:
        """Fewer stages first."""
        return (1, len(self.groups))

    def advance(self, prover: Prover) -> Step[Node]:
        """Bound all families at once, try the partition found under each, and open what lies below."""
        below = self.space.candidates(self.groups, self.size)
        alike = [each for each in below if each.family.alternates and self.alternating is not False]
        others = [each for each in below if not each.family.alternates and self.alternating is not True]
        if alike and others:
            return self._within(prover, below, [replace(self, alternating=each) for each in (True, False)])
        box = Box.of(alike[0].replicas, alike[0].micro_batches) if alike and alike[0].free else None
        if box is not None and box.size > 1:
            inside = tuple(each for each in alike if each.in_flight in box)
            outside = [each for each in alike if each.in_flight not in box]
            return Step.split([FlightsNode(self.bound, inside, box), *self._families(outside)])
        if len(alike) > 1:
            return self._within(prover, alike, self._families(alike))
        return Step.split(self._families(alike or others))

    def _families(self, candidates: list[Candidate]) -> list[FamilyNode]:
        return [FamilyNode(max(self.bound, candidate.floor), candidate) for candidate in candidates]

    def _within(self, prover: Prover, candidates: list[Candidate], below: Sequence[Node]) -> Step[Node]:
        """What lies below, with a bound on all candidates; nothing if that closes the node.

        Two lanes obey (8) too, as each of their backwards takes F + B (docs/bounds.md).
        """
        counts = [candidate.in_flight for candidate in candidates]
        if candidates[0].free:
            box = Box.of(candidates[0].replicas, candidates[0].micro_batches)
            counts += [box.low, box.high]
        held, warm_up = np.min(counts, axis=0), np.max(counts, axis=0)
        one_lane = min(candidates, key=lambda candidate: candidate.family.two_lanes)  # needs the least workspace
        problem = partition_problem(one_lane, tuple(held.tolist()), tuple(warm_up.tolist()))
        report = partition.solve(problem, prover.precise(prover.left), backend="exact", cutoff=prover.cutoff)
        if not self.learn(report):
            return Step.nothing()
        if report.solution is not None:
            prover.submit_all(candidates, report.solution)
        if prover.fathoms(self.bound):
            return Step.leave(self.bound)
        for node in below:
            node.bound = max(node.bound, self.bound)
        return Step.split(below)
