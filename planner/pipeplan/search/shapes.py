"""A shape of the pipeline, with everything about schedules left open: one dynamic programme bounds them all.

What it relaxes: the memory of the family that holds least, and bounds that hold for any order of actions.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipeplan.search.candidates import partition_problem
from pipeplan.search.family_node import FamilyNode
from pipeplan.search.judge import judge
from pipeplan.search.prove import Node, Prover
from pipeplan.search.space import Space
from pipeplan.structure import Groups
from pipeplan_formulations import partition
from pipeplan_formulations.report import Limits, Status, Stop


@dataclass
class ShapeNode:
    """A shape and a micro-batch size; below it lies one node a family."""

    bound: int
    space: Space
    groups: Groups
    size: int

    @property
    def rank(self) -> tuple[int, ...]:
        """Fewer stages first."""
        return (1, len(self.groups))

    def advance(self, prover: Prover) -> Iterable[Node]:
        """Bound all families at once, try the partition found under each, and open them."""
        below = self.space.candidates(self.groups, self.size)
        if len(below) == 1:
            yield FamilyNode(max(self.bound, below[0].floor), below[0])
            return
        least = np.minimum.reduce([np.array(candidate.in_flight) for candidate in below])
        relaxed = partition_problem(below[0], tuple(int(k) for k in least), two_lanes=False, alternating=False)
        report = partition.solve(relaxed, Limits(prover.left, prover.limits.gap), backend="exact")
        if report.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt
        if report.status is Status.INFEASIBLE:
            return
        self.bound = max(self.bound, report.bound)
        if report.solution is not None:
            for candidate in sorted(below, key=lambda candidate: sum(candidate.in_flight)):
                if candidate.fits(report.solution):
                    prover.offer(judge(prover.cluster, candidate, report.solution))
        for candidate in below:
            yield FamilyNode(max(self.bound, candidate.floor), candidate)
