"""A shape of the pipeline, with its schedule left open: one dynamic programme bounds all 1F1B families at once.

What it relaxes: the memory of the family that holds least, and the warm-up of the one that holds most.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipeplan.schedules import FAMILIES
from pipeplan.search.candidates import Candidate, partition_problem
from pipeplan.search.family_node import FamilyNode
from pipeplan.search.flights import between
from pipeplan.search.offer import offer_all
from pipeplan.search.prove import Node, Prover
from pipeplan.search.space import Space
from pipeplan.structure import Groups
from pipeplan_formulations import partition
from pipeplan_formulations.report import Limits, Status, Stop


@dataclass
class ShapeNode(Node):
    """A shape and a micro-batch size; below it lies one node a family.

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

    def advance(self, prover: Prover) -> Iterable[Node]:
        """Bound all 1F1B families at once, try the partition found under each, and open every family."""
        below = self.space.candidates(self.groups, self.size)
        alike = [each for each in below if each.family.alternates and self.alternating is not False]
        others = [each for each in below if not each.family.alternates and self.alternating is not True]
        least = self.bound
        if len(alike) > 1:
            report = partition.solve(self._relaxed(alike), Limits(prover.left, prover.limits.gap), backend="exact")
            if report.stop is Stop.INTERRUPT:
                raise KeyboardInterrupt
            if report.status is Status.INFEASIBLE:
                alike = []
            least = max(least, report.bound)
            if report.solution is not None:
                offer_all(prover, alike, report.solution)
                if self.space.chooses_flights and between(alike[0].replicas, alike[0].micro_batches) is None:
                    prover.settle(least)  # in-flight counts that nobody will look at one by one
        for known, family in ((least, alike), (self.bound, others)):
            yield from (FamilyNode(max(known, candidate.floor), candidate) for candidate in family)

    def _relaxed(self, alike: list[Candidate]) -> partition.ChainPartition:
        counts = [candidate.in_flight for candidate in alike]
        if self.space.chooses_flights:
            counts += [
                FAMILIES[name].in_flight(alike[0].replicas, alike[0].micro_batches) for name in ("1f1b-sno", "1f1b-so")
            ]
        held, warm_up = np.min(counts, axis=0), np.max(counts, axis=0)
        return partition_problem(alike[0], tuple(held.tolist()), tuple(warm_up.tolist()))
