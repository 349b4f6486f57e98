"""Very many shapes at once: one dynamic programme bounds all that a layout can make, and names the best one."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pipeplan.search.candidates import Candidate
from pipeplan.search.climb import Climb, Question, at_once
from pipeplan.search.flights import free_family
from pipeplan.search.layouts import Layout, allocation_problem
from pipeplan.search.prove import Node, Prover, Step, Turn
from pipeplan.search.shapes import ShapeNode
from pipeplan.search.space import Space
from pipeplan.structure import Groups, Modes, arrange
from pipeplan_formulations import allocation
from pipeplan_formulations.report import Limits, Stop

FIRST_SLICE = 4.0
"""Seconds that a lump gets at first; four times as many each time it was not enough."""


@dataclass
class LumpNode(Node):
    """All shapes of a layout at a micro-batch size, under 1F1B with any in-flight counts or under the other families.

    Where there are few devices the lump is a tree, and every shape is looked at whose bound does not exclude it: below
    a node lie the shape of its ``last`` modes alone, and one node for each mode that may stand before them.

    A large lump is asked for what is much better than the incumbent first (`pipeplan.search.climb`). 1F1B's bound is
    GPipe's too (docs/bounds.md); where it can be raised no further, GPipe's best is looked for by itself.
    """

    bound: int
    space: Space
    layout: Layout
    size: int
    alternating: bool
    last: Modes = ()
    slice: float = FIRST_SLICE
    proved: int = 0
    climb: Climb = field(default_factory=Climb)

    @property
    def small(self) -> bool:
        """Whether it is a tree."""
        return self.layout.small(len(self.space.model.layers))

    @property
    def covers(self) -> bool:
        """Whether it is 1F1B's and bounds the other families too, so that no other lump asks for them."""
        others = [each for each in self.space.families if not each.alternates]
        return self.alternating and not self.small and bool(others) and self.space.phased

    @property
    def rank(self) -> tuple[int, ...]:
        """What takes the least time first; gradients that stay in nodes. In a tree, what is nearly a shape."""
        cost = self.layout.unit if self.small else self.layout.cells(1)
        tile = self.layout.tile or self.layout.unit
        return (2, int(self.slice), not self.alternating, 0 if self.small else self.size, cost, -tile, -len(self.last))

    @property
    def turn(self) -> Turn:
        """Roots of trees take little time; and somebody has to find a first plan, which one width does soonest."""
        if self.last or self.slice > FIRST_SLICE:
            return Turn.BY_BOUND
        if self.small:
            return Turn.EARLY
        return Turn.UNTIL_A_PLAN if len(self.layout.widths) == 1 else Turn.BY_BOUND

    def advance(self, prover: Prover) -> Step[Node]:
        """Ask for something better, simulate it, and open what lies below.

        In a large layout that is its shape; what the others may still hold is left with the lump's bound, unless there
        is more time to raise it. The problem does not know all wishes: where its solution goes against one, the lump
        becomes a tree.
        """
        asked = self._question(prover)
        problem = allocation_problem(self.space, self.size, self.layout, self.alternating, self.last)
        slice_ = min(prover.left / 2, self.slice)  # others have something to do as well
        report = allocation.solve(problem, Limits(slice_, asked.accuracy), cutoff=asked.cutoff, known=self.proved)
        if not self.learn(report):
            return Step.nothing()
        self.proved = report.bound
        unfinished = report.stop is Stop.TIME
        self.slice *= 4 if unfinished else 1
        if report.solution is None:  # nothing is better than what is known, or better enough
            last = asked.last or report.stop is Stop.EXHAUSTED
            return Step.split([self]) if unfinished or not last else Step.leave(self.bound)
        groups = self._groups(self.layout.modes(report.solution))
        promising = prover.value is None or (report.objective or 0) < prover.value
        boundaries = (0, *(place.end for place in report.solution))
        candidates = [] if groups is None else self._alike(self.space.candidates(groups, self.size))
        wanted = any(self.space.unasked(candidate, boundaries) is None for candidate in candidates)
        if wanted and promising:
            chosen = _held(candidates, problem.flights(report.solution))
            prover.submit_all([*candidates, *chosen], boundaries)
        if self.small:
            return Step.split(list(self._below()))
        if unfinished and prover.left > FIRST_SLICE:
            return Step.split([self])
        if not unfinished and (not wanted or prover.value is None):  # its best is no plan: others may be one
            return Step.split(list(self._below()))
        if not asked.last and not unfinished:
            self.climb.up()
            return Step.split([self])
        nodes: list[Node] = []
        if groups is not None and wanted:
            nodes.append(ShapeNode(self.bound, self.space, groups, self.size, self.alternating))
        if self.covers:
            nodes.append(LumpNode(self.bound, self.space, self.layout, self.size, alternating=False))
        return Step.leave(self.bound, nodes)

    def _question(self, prover: Prover) -> Question:
        return at_once(prover) if self.small else self.climb.question(prover, self.bound)

    def _below(self) -> Iterable[Node]:
        groups = self._groups(self.last) if self.last else None
        job = self.space.job
        if groups is not None and (not job.depths or len(groups) in job.depths):
            yield ShapeNode(self.bound, self.space, groups, self.size, None if self.covers else self.alternating)
        deepest = min(max(job.depths, default=len(self.space.model.layers)), len(self.space.model.layers))
        if len(self.last) < deepest:
            for mode in self.layout.before(self.last):
                yield replace(self, last=(mode, *self.last), climb=replace(self.climb))

    def _groups(self, modes: Modes) -> Groups | None:
        return arrange(self.space.classes, modes, self.layout.tile)

    def _alike(self, candidates: list[Candidate]) -> list[Candidate]:
        return [each for each in candidates if self.covers or each.family.alternates == self.alternating]


def _held(candidates: list[Candidate], in_flight: list[int]) -> list[Candidate]:
    """The candidate that holds so many micro-batches, unless it is among those known."""
    if not candidates or not candidates[0].free or not candidates[0].family.alternates:
        return []
    other = replace(candidates[0], family=free_family(tuple(in_flight)))
    return [] if any(other.in_flight == each.in_flight for each in candidates) else [other]
