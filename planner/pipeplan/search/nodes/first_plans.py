"""Plans from allocations: the first plans of a search, before any bound is raised."""

from dataclasses import dataclass, replace

from pipeplan.search.branch_and_bound import Node, PlanSearch, Step, Turn
from pipeplan.search.nodes.aggregate_problem import allocation_problem
from pipeplan.search.nodes.device_groups import SpaceNode
from pipeplan.search.nodes.layouts import Layout
from pipeplan.search.space.candidates import Candidate
from pipeplan.search.space.in_flight import free_family
from pipeplan.search.space.outside import unasked
from pipeplan.search.space.space import Placed, Space
from pipeplan_formulations.allocation import Allocation, ChainAllocation, FurthestEnd
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits

SECONDS = 4.0
"""Most seconds for the allocations of one node."""
SHARE = 0.03
"""Share of the time limit in which allocations are sought with teams of one size, if there is a plan."""


@dataclass
class FirstPlansNode(SpaceNode):
    """A few plans on packed device groups of one number of replicas. Other nodes bound these groups."""

    layout: Layout
    alternating: bool

    @property
    def rank(self) -> tuple[int, ...]:
        """The least effort first."""
        return (2, self.layout.cells(1), self.bound, self.size)

    @property
    def turn(self) -> Turn:
        """Early: good plans fathom many nodes."""
        return Turn.EARLY

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Simulate the allocations of the furthest-end programme."""
        began = search.spent
        if search.value is not None and search.for_first_plans[self.teams] > SHARE * search.limits.time:
            return Step.nothing()
        problem = allocation_problem(self.space, self.size, self.layout, self.alternating)
        programme = FurthestEnd(problem, Clock(Limits(min(search.left / 2, SECONDS))))
        high = problem.largest if search.cutoff is None else max(search.cutoff, self.bound)
        for stages in programme.allocations(self.bound, high):
            submit(search, self.space, self.size, self.layout, problem, stages, self.bound)
        search.for_first_plans[self.teams] += search.spent - began
        return Step.nothing()


def submit(
    search: PlanSearch,
    space: Space,
    size: int,
    layout: Layout,
    problem: ChainAllocation,
    stages: Allocation,
    bound: int,
    alternating: bool | None = None,
) -> list[Placed]:
    """Simulate an allocation under all families that it fits, unless its bound excludes an improvement.

    ``alternating``: only 1F1B (True) or only the other families (False).

    Returns
    -------
    Its device groups, each with the space of its plans; none if it is no plan.
    """
    boundaries, found = (0, *(place.end for place in stages)), list[Placed]()
    for own, groups in space.placed(layout.modes(stages), boundaries, layout.tile):
        candidates = [each for each in own.candidates(groups, size) if alternating in (None, each.family.alternates)]
        if all(unasked(own, candidate, boundaries) is not None for candidate in candidates):
            continue
        if search.value is None or bound < search.value:
            chosen = with_counts(candidates, problem.in_flight_counts(stages))
            search.submit_all([*candidates, *chosen], boundaries)
        found.append((own, groups))
    return found


def with_counts(candidates: list[Candidate], in_flight: list[int]) -> list[Candidate]:
    """The candidate with these in-flight counts in a list; empty if it is among ``candidates``."""
    if not candidates or not candidates[0].free or not candidates[0].family.alternates:
        return []
    other = replace(candidates[0], family=free_family(tuple(in_flight)))
    return [] if any(other.in_flight == each.in_flight for each in candidates) else [other]
