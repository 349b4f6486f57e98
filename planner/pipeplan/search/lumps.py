"""Very many shapes at once: one dynamic programme bounds all that a layout can make, and names the best one."""

from collections.abc import Iterable
from dataclasses import dataclass

from pipeplan.search.layouts import Layout, allocation_problem
from pipeplan.search.offer import offer_all
from pipeplan.search.prove import Node, Prover
from pipeplan.search.shapes import ShapeNode
from pipeplan.search.space import Space
from pipeplan.structure import arrange, device_classes
from pipeplan_formulations import allocation
from pipeplan_formulations.report import Limits, Status, Stop

FIRST_SLICE = 4.0
"""Seconds that a lump gets at first; four times as many each time it was not enough."""
CLOSE = 5e-4
"""The relative gap at which the most promising shape is good enough: simulation decides the rest."""


@dataclass
class LumpNode:
    """All shapes of a layout at a micro-batch size: under 1F1B with any in-flight counts, or under other families."""

    bound: int
    space: Space
    layout: Layout
    size: int
    alternating: bool
    slice: float = FIRST_SLICE

    @property
    def quick(self) -> bool:
        """Equal layouts take little time and give good plans, with which the others are soon done."""
        return len(self.layout.widths) == 1 and self.slice == FIRST_SLICE

    @property
    def rank(self) -> tuple[int, ...]:
        """Equal layouts first."""
        return (2, not self.alternating, len(self.layout.widths))

    def advance(self, prover: Prover) -> Iterable[Node]:
        """Bound the lump, simulate its most promising shape, and open that shape.

        What the other shapes of the lump may still hold is settled with the lump's bound.
        """
        problem = allocation_problem(self.space, self.size, self.layout, self.alternating)
        slice_ = min(prover.left, self.slice)
        gap = max(prover.limits.gap, CLOSE)
        report = allocation.solve(problem, Limits(slice_, gap), cutoff=prover.value)
        if report.stop is Stop.INTERRUPT:
            raise KeyboardInterrupt
        if report.status is Status.INFEASIBLE:
            return
        self.bound = max(self.bound, report.bound)
        if report.solution is None:
            if report.stop is Stop.TIME:  # otherwise nothing better than what is known
                self.slice *= 4
                yield self
            return
        if prover.value is None or self.bound < prover.value:
            prover.settle(self.bound)
        groups = arrange(device_classes(self.space.cluster), self.layout.modes(report.solution), self.layout.tile)
        if groups is None:
            return
        boundaries = (0, *(place.end for place in report.solution))
        offer_all(prover, self.space.candidates(groups, self.size), boundaries)
        yield ShapeNode(self.bound, self.space, groups, self.size)
