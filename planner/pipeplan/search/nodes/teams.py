"""`TeamsNode`: teams of one size that are not open yet, as a node of the search.

::

    bound of the work alone ──▶ of the best strategies ──▶ of the least way ──▶ every way is priced, and has its nodes
                        └───────────┴── at least the best plan: closed ┘
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from pipeplan.core.errors import InputError
from pipeplan.core.splits import Split
from pipeplan.costs.sharding.least_way import least_way
from pipeplan.costs.sharding.ways import Between, TeamWays
from pipeplan.search import any_order_nodes, nodes_of
from pipeplan.search.branch_and_bound import Node, PlanSearch, Step, Turn
from pipeplan.search.infeasible import promising
from pipeplan.search.nodes.device_groups import SpaceNode
from pipeplan.search.nodes.least_ways import RoundsNode, bounds_rounds, bounds_ways, in_rounds, lower_bound, together
from pipeplan.search.space.opening import Opening
from pipeplan.search.space.space import MANY_UNITS, Space
from pipeplan.search.space.spaces import Spaces
from pipeplan_formulations.common.clock import OutOfTimeError
from pipeplan_formulations.common.report import BeyondIntegersError
from pipeplan_formulations.common.sentinels import UNLIMITED
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
        """After all others: one of these may find a plan that closes it. The largest teams come first: they are few."""
        return (4, -max(self.opening.sizes))

    @property
    def turn(self) -> Turn:
        """Early until some plan fits, and on very many devices, where a good plan saves most of the others' ways."""
        many = len(self.opening.least.cluster.devices) > MANY_UNITS * max(self.opening.sizes)
        return Turn.EARLY if self.raised and many else Turn.UNTIL_A_PLAN

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Raise the bound, as far as the best plan, then open all ways; those without time for it keep the bound."""
        if not self.raised:
            self.raised = True
            if search.cutoff is not None:
                self.bound = max(self.bound, self.opening.raised(search.cutoff))
            if not search.fathoms(self.bound):
                self._bound_least_ways(search)
                self.bound = max(self.bound, self.opening.bound)
            return Step.split([self])
        if self.opening.refuted and self.narrows:
            return Step.nothing()
        if search.negligible(self.bound):
            self.opening.left = True
            return Step.leave(self.bound)
        below = UNLIMITED if search.cutoff is None else search.cutoff
        ways = list(self.opening.open(below if self.narrows else None))
        if self.opening.refuted:  # they were named, and are open for what is said of them
            return Step.nothing()
        small = [own for own in ways if own.split is not None and bounds_rounds(own)]
        others = chain.from_iterable(own for own in ways if own not in small)
        opened = promising(chain(others, *(own.in_one_round for own in small)))
        self.hopeful += opened
        nodes = [*together(self._known(nodes_of(opened))), *chain.from_iterable(map(any_order_nodes, opened))]
        nodes += self._known(in_rounds(small))
        if not self.opening.done:
            return Step.leave(self.bound, nodes)
        return Step.leave(below, nodes) if self.narrows and below < UNLIMITED else Step.split(nodes)

    def _bound_least_ways(self, search: PlanSearch) -> None:
        """Bound all ways at once, at each micro-batch size where these teams may have better plans."""
        most = UNLIMITED if search.cutoff is None else search.cutoff
        for team in self.opening.sizes:
            steps, ways = self.opening.least.steps_of(team), self.opening.least.ways[team]
            for between, size in steps.below(most):
                with suppress(BeyondIntegersError, InputError, OutOfTimeError, TooLargeError):  # nothing is known
                    if between is not None and search.left > 0:
                        steps.learn(between, size, self._of_least_way(search, ways, between, size))

    def _of_least_way(self, search: PlanSearch, ways: TeamWays, between: Between, size: int) -> int:
        """A lower bound on all ways with this between layers, at most the cutoff; 0 if none is known.

        `UNLIMITED` if no plan of any way fits.
        """
        job = self.opening.least.job
        splits = self.opening.least.splits
        question = least_way(ways, between, size, job, splits) if ways.model.slicing is None else None
        if question is None:
            return 0
        own = Spaces(question.model, question.cluster, question.job, question.split, halved=splits)
        halved = [space for laid in own.every_laid if own.rounds.splits(laid) for space in own.at(laid) or ()]
        others = (space for space in own if space not in halved)
        bound = UNLIMITED
        for some in (halved, others):  # split backwards leave devices idle least: where they may be better, that is all
            spaces = promising(some)
            if not all(map(bounds_ways, spaces)):
                return 0
            bound = min(bound, lower_bound(spaces, search))
            if bound < UNLIMITED and not search.fathoms(bound):
                return 0
        return bound

    def _known(self, nodes: Iterable[Node]) -> Iterator[Node]:
        """Yield the nodes, each with the bound that was known of its way, if that was more and some plan may fit."""
        for node in nodes:
            split = node.space.split if isinstance(node, SpaceNode) else None
            split = node.ways[0].split if isinstance(node, RoundsNode) else split
            if isinstance(node, SpaceNode | RoundsNode) and isinstance(split, Split) and not split.mesh:
                known = self.opening.least.steps_of(split.team).of((split.placements, split.passes), node.size)
                node.bound = max(node.bound, known)
            if node.bound < UNLIMITED:
                yield node
