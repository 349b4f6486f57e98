"""`TeamsNode`: teams of one size that are not open yet, as a node of the search.

::

    bound of the work alone ──▶ bound of the best strategies ──▶ every way is priced, and has nodes of its own
                        └── at least the best plan: closed ──┘
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

from pipeplan.search import any_order_nodes, nodes_of
from pipeplan.search.branch_and_bound import Node, PlanSearch, Step
from pipeplan.search.infeasible import promising
from pipeplan.search.space.opening import Opening
from pipeplan.search.space.space import Space


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

    opening: Opening[Iterable[Space]]
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
            self.bound, self.raised = max(self.bound, self.opening.raised(search.cutoff)), True
            return Step.split([self])
        if search.negligible(self.bound):
            self.opening.left = True
            return Step.leave(self.bound)
        cutoff = search.cutoff if self.narrows else None
        opened = [space for spaces in self.opening.open(cutoff) for space in promising(spaces)]
        self.hopeful += opened
        nodes = [*nodes_of(opened), *chain.from_iterable(map(any_order_nodes, opened))]
        return Step.split(nodes) if self.opening.done else Step.leave(self.bound, nodes)
