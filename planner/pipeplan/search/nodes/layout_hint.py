"""Hints from aggregate nodes to the local search: the layout that one works on, in which a beam finds other plans."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from pipeplan.search.local_search import Hint, Start, Workplace
from pipeplan.search.nodes.aggregate_problem import allocation_problem
from pipeplan.search.nodes.first_plans import with_counts
from pipeplan.search.nodes.layouts import Layout
from pipeplan.search.space.space import Space
from pipeplan_formulations import allocation
from pipeplan_formulations.common.report import Limits

SECONDS = 30.0
"""Most seconds of a beam."""


@dataclass(frozen=True)
class LayoutHint(Hint):
    """A layout at a micro-batch size, of 1F1B alone: the programme counts its cycles between stages."""

    size: int
    layout: Layout

    def give(self, place: Workplace) -> None:
        """Let the local search try it."""
        space = self.space(place.spaces)
        if space is not None:
            place.search.consider(self, partial(self.starts, space))

    def starts(self, space: Space, value: int) -> Iterator[Start]:
        """Yield candidates with boundaries, from allocations that may be better than a value."""
        problem = replace(allocation_problem(space, self.size, self.layout, alternating=True), two_trips=True)
        for stages in allocation.promising(problem, Limits(SECONDS), value):
            boundaries = (0, *(place.end for place in stages))
            for own, groups in space.placed(self.layout.modes(stages), boundaries, self.layout.tile):
                candidates = [each for each in own.candidates(groups, self.size) if each.family.alternates]
                chosen = with_counts(candidates, problem.in_flight_counts(stages))
                fuller = (more for each in chosen for more in each.with_more_in_flight(own.cluster, boundaries))
                yield from ((own, each, boundaries) for each in (*candidates, *chosen, *fuller))
