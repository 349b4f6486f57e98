"""Very many shapes at once: one dynamic programme bounds all that a layout can make, and names the best one."""

from collections.abc import Iterable
from dataclasses import dataclass

from pipeplan.search.judge import judge
from pipeplan.search.layouts import Layout, allocation_problem
from pipeplan.search.prove import Node, Prover
from pipeplan.search.shapes import ShapeNode
from pipeplan.search.space import Space
from pipeplan.structure import arrange, device_classes
from pipeplan_formulations import allocation
from pipeplan_formulations.report import Limits, Status, Stop


@dataclass
class LumpNode:
    """All shapes of a layout at a micro-batch size."""

    bound: int
    space: Space
    layout: Layout
    size: int

    @property
    def rank(self) -> tuple[int, ...]:
        """Equal layouts first: they are quick."""
        return (2, len(self.layout.widths))

    def advance(self, prover: Prover) -> Iterable[Node]:
        """Bound the lump, simulate its most promising shape, and open that shape.

        What the other shapes of the lump may still hold is settled with the lump's bound.
        """
        problem = allocation_problem(self.space, self.size, self.layout)
        limits = Limits(prover.left, prover.limits.gap, prover.limits.workers, prover.limits.seed)
        report = allocation.solve(problem, limits, backend="exact")
        if report.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt
        if report.status is Status.INFEASIBLE:
            return
        self.bound = max(self.bound, report.bound)
        prover.settle(self.bound)
        if report.solution is None:
            return
        groups = arrange(device_classes(self.space.cluster), self.layout.modes(report.solution), self.layout.tile)
        if groups is None:
            return
        boundaries = (0, *(place.end for place in report.solution))
        for candidate in sorted(self.space.candidates(groups, self.size), key=lambda each: sum(each.in_flight)):
            if candidate.fits(boundaries) and (
                prover.value is None or candidate.problem.evaluate(boundaries) < prover.value
            ):
                prover.offer(judge(prover.cluster, candidate, boundaries))
        yield ShapeNode(self.bound, self.space, groups, self.size)
