"""Equal layouts that differ in their tiles only: one look at what the best tile could offer closes most of them."""

from dataclasses import dataclass, field, replace

from pipeplan.search.climb import Climb
from pipeplan.search.layouts import Layout, allocation_problem
from pipeplan.search.lumps import FIRST_SLICE, LumpNode
from pipeplan.search.prove import Node, Prover, Step, Turn
from pipeplan.search.space import Space
from pipeplan_formulations import allocation
from pipeplan_formulations.report import Limits, Stop

ROUGH = 5
"""How much less accurate its bound may be than a lump's where something is found: then each layout is asked itself."""


@dataclass
class TilingsNode(Node):
    """The layouts of one number of replicas at a micro-batch size; below it lies one lump a layout."""

    bound: int
    space: Space
    layouts: tuple[Layout, ...]
    size: int
    alternating: bool
    climb: Climb = field(default_factory=Climb)

    @property
    def rank(self) -> tuple[int, ...]:
        """Like the lumps below it."""
        return self._lump(_best_of(self.layouts)).rank

    @property
    def turn(self) -> Turn:
        """Like the lumps below it."""
        return Turn.UNTIL_A_PLAN

    def advance(self, prover: Prover) -> Step[Node]:
        """Ask for something better under all tiles at once; if there is, ask each. Without a plan, ask one alone."""
        if prover.value is None:
            first, *rest = sorted(self.layouts, key=lambda layout: self._lump(layout).rank)
            others = replace(self, layouts=tuple(rest)) if len(rest) > 1 else self._lump(*rest)
            return Step.split([self._lump(first), others])
        asked = self.climb.question(prover, self.bound)
        problem = allocation_problem(self.space, self.size, _best_of(self.layouts), self.alternating)
        limits = Limits(min(prover.left / 2, FIRST_SLICE / 2), ROUGH * asked.accuracy)
        report = allocation.solve(problem, limits, cutoff=asked.cutoff, known=self.bound)
        if not self.learn(report):
            return Step.nothing()
        if report.solution is None and report.stop is not Stop.TIME and not asked.last:
            return Step.split([self])
        return Step.split([self._lump(layout) for layout in self.layouts])

    def _lump(self, layout: Layout) -> LumpNode:
        return LumpNode(self.bound, self.space, layout, self.size, self.alternating, climb=replace(self.climb))


def _best_of(layouts: tuple[Layout, ...]) -> Layout:
    """What no tile surpasses: gradients and tensors take the faster of a node's link and the network."""
    units = tuple(max(numbers) for numbers in zip(*(layout.units for layout in layouts), strict=True))
    return replace(layouts[0], units=units, per_node=tuple(count + 1 for count in units), tile=None, loose=True)
