"""Equal layouts that differ in their tiles only: one look at what the best tile could offer closes most of them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pipeplan.search.layouts import Layout, allocation_problem
from pipeplan.search.lumps import CLOSE, FIRST_SLICE, LumpNode
from pipeplan.search.prove import Node, Prover
from pipeplan.search.space import Space
from pipeplan_formulations import allocation
from pipeplan_formulations.report import Limits, Status, Stop


@dataclass
class TilingsNode:
    """The layouts of one number of replicas at a micro-batch size; below it lies one lump a layout."""

    bound: int
    space: Space
    layouts: tuple[Layout, ...]
    size: int
    alternating: bool

    @property
    def quick(self) -> bool:
        """Like the lumps below it."""
        return True

    @property
    def rank(self) -> tuple[int, ...]:
        """Few replicas first."""
        return (2, not self.alternating, 1, self.layouts[0].unit, 0)

    def advance(self, prover: Prover) -> Iterable[Node]:
        """Bound all tiles at once, then, if that does not exclude them, each."""
        if prover.value is not None:
            problem = allocation_problem(self.space, self.size, _best_of(self.layouts), self.alternating)
            slice_ = min(prover.left / 2, FIRST_SLICE)
            report = allocation.solve(problem, Limits(slice_, CLOSE), cutoff=prover.value)
            if report.stop is Stop.INTERRUPT:
                raise KeyboardInterrupt
            if report.status is Status.INFEASIBLE:
                return
            self.bound = max(self.bound, report.bound)
        for layout in self.layouts:
            lump = LumpNode(self.bound, self.space, layout, self.size, self.alternating)
            if prover.value is not None and self.bound >= prover.value:
                return
            yield from lump.advance(prover) if prover.left > 0 else [lump]


def _best_of(layouts: tuple[Layout, ...]) -> Layout:
    """What no tile surpasses: gradients stay inside nodes as with the largest tile, tensors as with a node for all."""
    units = tuple(max(numbers) for numbers in zip(*(layout.units for layout in layouts), strict=True))
    largest = max(layouts, key=lambda layout: layout.tile or 0)
    return replace(largest, units=units, per_node=tuple(count + 1 for count in units))
