"""`TeamsNode`: teams of one size that are not open yet, as a node of the search.

::

    bound of the work alone ──▶ of the best strategies ──▶ of the least way ──▶ every way is priced, and has its nodes
                        └───────────┴── at least the best plan: closed ┘
"""

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from pipeplan.core.splits import Split
from pipeplan.costs.sharding.least_way import least_way
from pipeplan.costs.sharding.ways import Between, TeamWays
from pipeplan.search import any_order_nodes, nodes_of
from pipeplan.search.branch_and_bound import Node, PlanSearch, Step
from pipeplan.search.infeasible import promising
from pipeplan.search.nodes.device_groups import SpaceNode
from pipeplan.search.nodes.least_ways import bounds_ways, in_rounds, lower_bound, together
from pipeplan.search.space.opening import Opening
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces
from pipeplan_formulations.common.clock import OutOfTimeError
from pipeplan_formulations.common.report import BeyondIntegersError
from pipeplan_formulations.sharding import TooLargeError


@dataclass
class TeamsNode(Node):
    """The plans of an opening of teams.

    Attributes
    ----------
    opening : Opening
    hopeful : list of Space
        Gets those spaces where it is not easily seen that nothing fits.
    narrows : bool
        Whether only micro-batch sizes are priced whose bound leaves hope. Baseline planners ask for all.
    """

    opening: Opening[Spaces]
    hopeful: list[Space]
    narrows: bool
    bound: int = field(init=False)
    raised: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.bound = self.opening.bound

    @property
    def rank(self) -> tuple[int, ...]:
        """After all others: one of these may find a plan that closes it."""
        return (4,)

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Raise the bound if there is a plan to beat, then open all ways; those without time for it keep the bound."""
        if not self.raised and search.cutoff is not None:
            self.raised = True
            self.bound = max(self.bound, self.opening.raised(search.cutoff))
            if not search.fathoms(self.bound):
                self._bound_least_ways(search)
                self.bound = max(self.bound, self.opening.bound)
            return Step.split([self])
        if search.negligible(self.bound):
            self.opening.left = True
            return Step.leave(self.bound)
        cutoff = search.cutoff if self.narrows else None
        ways = list(self.opening.open(cutoff))
        whole = {own: [*own.in_one_round] for own in ways if own.split is not None}
        small = [own for own, spaces in whole.items() if spaces and all(map(bounds_ways, spaces))]
        others = chain.from_iterable(own for own in ways if own not in small)
        opened = promising(chain(others, *(own.in_one_round for own in small)))
        self.hopeful += opened
        nodes = [*together(map(self._known, nodes_of(opened))), *chain.from_iterable(map(any_order_nodes, opened))]
        nodes += in_rounds(small)
        if not self.opening.done:
            return Step.leave(self.bound, nodes)
        return Step.split(nodes) if cutoff is None else Step.leave(cutoff, nodes)

    def _bound_least_ways(self, search: PlanSearch) -> None:
        """Bound all ways at once, at each micro-batch size where these teams may have better plans."""
        assert search.cutoff is not None
        for team in self.opening.sizes:
            steps, ways = self.opening.least.steps_of(team), self.opening.least.ways[team]
            for between, size in steps.below(search.cutoff):
                with suppress(BeyondIntegersError, OutOfTimeError, TooLargeError):
                    if between is not None and search.left > 0:
                        steps.learn(between, size, self._of_least_way(search, ways, between, size))

    def _of_least_way(self, search: PlanSearch, ways: TeamWays, between: Between, size: int) -> int:
        """A lower bound on all ways with this between layers, at most the cutoff; 0 if none is known."""
        job = self.opening.least.job
        splits = self.opening.least.splits
        question = least_way(ways, between, size, job, splits) if ways.model.slicing is None else None
        if question is None:
            return 0
        spaces = Spaces(question.model, question.cluster, question.job, question.split)
        return lower_bound(spaces, search) if all(map(bounds_ways, spaces)) else 0

    def _known(self, node: Node) -> Node:
        """The node with the bound that was known of its way, if that was more."""
        if isinstance(node, SpaceNode) and isinstance(node.space.split, Split):
            split = node.space.split
            if not split.mesh:
                known = self.opening.least.steps_of(split.team).of((split.placements, split.passes), node.size)
                node.bound = max(node.bound, known)
        return node
