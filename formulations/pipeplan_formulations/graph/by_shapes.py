"""Branch-and-bound over shapes: the modes of the stages, from the last stage on.

::

    any modes ──▶ one more stage in front, in each mode      bound: relaxation by places, with the multipliers of others
              └─▶ no more stages                             fewer places for each group, larger least cuts, until the
                    │                                        bound rises no more; then its own multipliers
                    └─▶ linear model of this shape           only these places; neither modes nor conditions
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pipeplan_formulations.common.bracket import Bracket
from pipeplan_formulations.common.branch_and_bound import BranchAndBound, Step
from pipeplan_formulations.common.mip.model import MipSolver
from pipeplan_formulations.common.report import Stop
from pipeplan_formulations.graph.by_places import Multipliers, Relaxation
from pipeplan_formulations.graph.by_rows import search_shape
from pipeplan_formulations.graph.instance import GraphPartition, Stages
from pipeplan_formulations.graph.prefix import most_places

FIRST_SLICE = 4.0
"""Seconds of a shape's first solve; four times as many each time they were not enough."""


NARROW, SOLVE, MODEL = range(3)
FINE = 0.0005
"""Relative increase of a bound for which a relaxation is solved again."""


@dataclass
class Shape:
    """Modes of the last stages, the last one first; ``closed``: there are no other stages.

    Attributes
    ----------
    bound : int
    relaxation : Relaxation
    stage : int
        The next step of a closed shape: narrow the places of its groups, solve its relaxation, or its linear model.
    seconds : float
        Time for its linear model.
    """

    bound: int
    modes: tuple[int, ...]
    closed: bool
    relaxation: Relaxation
    stage: int = NARROW
    seconds: float = FIRST_SLICE

    @property
    def rank(self) -> tuple[int, ...]:
        """The one with the most stages first."""
        return (int(self.seconds), -self.closed, -len(self.modes))


class ShapeSearch(BranchAndBound[Shape, Stages]):
    """The state of one search; ``bracket`` gets the plans and the bound."""

    def __init__(self, problem: GraphPartition, bracket: Bracket[Stages], solver: MipSolver) -> None:
        limits = replace(bracket.limits, time=bracket.clock.left)
        super().__init__(limits, lambda *_: bracket.raise_low(self.bound), bracket.best, bracket.high)
        self._problem, self._bracket, self._solver = problem, bracket, solver
        self._multipliers: list[Multipliers] = []
        if most_places(problem):
            self.push(Shape(bracket.low, (), False, Relaxation(problem, bracket.ceiling)))

    def advance(self, node: Shape) -> Step[Shape]:
        """Open one more stage, or take the next step of a closed shape."""
        if not self._multipliers or (node.closed and node.stage == SOLVE):
            multipliers = node.relaxation.solve(self.left)
            if multipliers is None:  # nothing fits anywhere, or the solver had no time, or trouble with numbers
                if self.left <= 0:
                    return Step.leave(node.bound)
                multipliers = node.relaxation.unpriced
            self._multipliers.append(multipliers)
            raised = max(node.bound, node.relaxation.bound(multipliers))
            stage = MODEL if raised <= node.bound * (1 + FINE) else NARROW
            return Step.split([replace(node, bound=raised, stage=stage if node.closed else NARROW)])
        if node.closed and node.stage == NARROW:
            best = max(self._multipliers, key=node.relaxation.bound)
            narrow = node.relaxation.narrowed(best, self._bracket.ceiling)
            raised = max(node.bound, *map(narrow.bound, self._multipliers))
            stage = SOLVE if raised <= node.bound * (1 + FINE) else NARROW
            return Step.split([replace(node, bound=raised, relaxation=narrow, stage=stage)])
        if not node.closed:
            return Step.split(list(self._below(node)))
        bound, stop = search_shape(
            self._problem,
            self._bracket,
            self._solver,
            min(node.seconds, self.left),
            node.modes[::-1],
            node.relaxation.allowed,
        )
        if self._bracket.best is not None and self._bracket.high is not None:
            self.improve(self._bracket.best, self._bracket.high)
        if stop is Stop.INTERRUPT:
            raise KeyboardInterrupt
        if bound is None:
            return Step.nothing()
        bound = max(node.bound, bound)
        if stop is Stop.TIME:
            return Step.split([replace(node, bound=bound, seconds=4 * node.seconds)])
        return Step.leave(bound)

    def _below(self, node: Shape) -> Iterator[Shape]:
        """No stage in front, and one more stage in each mode that may stand there."""
        problem = self._problem
        number = len(node.modes)
        ways = [(node.modes, True)] if number and (not problem.depths or number in problem.depths) else []
        if number < min(max(problem.depths, default=problem.groups), problem.groups):
            ways += [((*node.modes, m), False) for m in range(len(problem.modes)) if self._may_stand(m, node.modes)]
        for modes, closed in ways:
            relaxation = node.relaxation.below(modes, closed)
            bound = max([node.bound, *map(relaxation.bound, self._multipliers)])
            if bound < self._bracket.ceiling:
                yield Shape(bound, modes, closed, relaxation)

    def _may_stand(self, mode: int, behind: tuple[int, ...]) -> bool:
        """True if there are devices for a stage in this mode before the others, and the pair is allowed."""
        problem, rows = self._problem, self._problem.modes
        for p, pool in enumerate(problem.pools):
            if rows[mode].takes[p] + sum(rows[m].takes[p] for m in behind) > pool:
                return False
        return problem.pairs is None or not behind or int(problem.pairs[mode, behind[-1]]) >= 0


def search_shapes(problem: GraphPartition, bracket: Bracket[Stages], solver: MipSolver) -> Stop:
    """Close the bracket in the time that is left; return the stop reason."""
    search = ShapeSearch(problem, bracket, solver)
    search.run()
    bracket.raise_low(search.bound)
    bracket.impossible = search.refuted
    return search.stop


def shapes(problem: GraphPartition) -> int:
    """Number of shapes that the places have room for."""
    counts: list[int] = []  # of those in front of which there are so many places
    for places in range(most_places(problem) + 1):
        counts.append(sum(1 + counts[places - mode.flow] for mode in problem.modes if mode.flow <= places))
    return counts[-1]
