"""Aggregate nodes that differ in costs and places only, bounded together as long as that closes them.

Single devices have a space for each level of ZeRO, teams of one size for each way to split too, and equally many
replicas are packed or lie in tiles. Most of these are much alike::

    way 1, level 0   way 1, level 1   way 2, level 0   way 2, level 1   …      one problem, of the least times and bytes
    ╰───────── nearer to the fastest one ─────────╯   ╰── to the farthest       two, if its bound is below the best plan
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from pipeplan.search.branch_and_bound import Node, PlanSearch, Step, Turn
from pipeplan.search.nodes.aggregate import ESTIMATED_LATER, FIRST_SLICE, AggregateNode, below
from pipeplan.search.nodes.aggregate_problem import allocation_problem, in_flight_rule
from pipeplan_formulations.allocation import ChainAllocation, FurthestEnd
from pipeplan_formulations.allocation.joined import together
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits

Own = TypeVar("Own")

AIMS = (0.2, 0.15, 0.1, 0.0)
"""Shares below the best plan to which the bound is raised in turn: much better plans are soon excluded. Before that it
is tried whether all better ones are, of teams whose bound is nearer than the first."""
ONCE = 1.0
"""Accuracy with which a programme only tries the highest bound."""
A_FEW = 8
"""Most nodes that are opened together behind a close bound, and of which the local search is told."""


def joined(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield root nodes that join others, those that differ in costs and places only together."""
    groups: dict[Hashable, list[AggregateNode]] = {}
    for node in nodes:
        assert isinstance(node, AggregateNode)  # no other node joins
        groups.setdefault(_question(node), []).append(node)
    for group in groups.values():
        yield JoinedSpacesNode.of([(node, None) for node in group]) if len(group) > 1 else group[0]


def _question(node: AggregateNode) -> Hashable:
    """What nodes have in common that are bounded together: all of their problem but costs and places."""
    space, layout = node.space, node.layout
    teams = (1,) if space.split is None else space.split.teams
    small = layout.by_family(len(space.model.layers))
    widths = layout if space.split is not None else (layout.unit, layout.widths, small)
    rules = in_flight_rule(space), space.phased, space.job.depths, space.constraints.cuts.tobytes()
    return teams, space.model.slices, node.size, widths, node.alternating, rules


@dataclass
class JoinedSpacesNode(Node):
    """Aggregate nodes of one micro-batch size and number of replicas; each with its problem, once that is known.

    Plans are those of the nodes; this one only bounds them. Without a plan to beat they are opened at once.
    ``closely``: the bound is next raised with prices of layers, in a ``slice`` of so many seconds. ``aim``: the
    number of that one of `AIMS` to which it is raised, -1 at first.
    """

    bound: int
    members: tuple[tuple[AggregateNode, ChainAllocation | None], ...]
    closely: bool = False
    slice: float = FIRST_SLICE
    aim: int = -1

    @classmethod
    def of(cls, members: Iterable[tuple[AggregateNode, ChainAllocation | None]]) -> "JoinedSpacesNode":
        """The node of these, with the least of their bounds."""
        every = tuple(members)
        return cls(min(node.bound for node, _ in every), every)

    @property
    def rank(self) -> tuple[int, ...]:
        """That of its first node."""
        return self.members[0][0].rank

    @property
    def turn(self) -> Turn:
        """Until a plan, if its nodes have that turn."""
        return self.members[0][0].turn

    @property
    def parts(self) -> tuple[str, ...]:
        """Those of all nodes."""
        return tuple(part for node, _ in self.members for part in node.parts)

    @property
    def shared(self) -> bool:
        """True: it only bounds plans."""
        return True

    def __getstate__(self) -> dict[str, Any]:
        """Without the problems, which each process makes for itself."""
        return vars(self) | {"members": tuple((node, None) for node, _ in self.members)}

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Raise the bound of all; if that is not enough, closely where they are alike, then divide them in two.

        Closely, halves are not tried where nothing was raised, or of a few: the nodes have programmes that bound more.
        So only all of the last aim is tried there.
        """
        if search.cutoff is None:
            return Step.split([node for node, _ in self.members])
        members = [
            (node, problem or allocation_problem(node.space, node.size, node.layout, node.alternating))
            for node, problem in self.members
        ]
        self.members = tuple(members)
        for node, problem in members if len(members) <= A_FEW else ():
            node.hint(search, problem)
        whole = together([problem for _, problem in members])
        clock = Clock(Limits(min(search.left, self.slice)))
        programme, most, before = FurthestEnd(whole, clock), search.cutoff, self.bound
        if self.aim < 0:
            self.aim = 0
            near = members[0][0].space.split is not None and below(most, AIMS[0]) <= self.bound
            if near and programme.lower_bound(most - 1, most, closely=False) >= most:
                self.bound = most
                return Step.leave(most)
        while self.aim < len(AIMS) - 1 and below(most, AIMS[self.aim]) <= self.bound:
            self.aim += 1
        high = max(below(most, AIMS[self.aim]), self.bound)
        last = self.closely and len(members) <= A_FEW and self.aim == len(AIMS) - 1
        self.bound = programme.lower_bound(self.bound, high, ONCE if last else ESTIMATED_LATER, closely=self.closely)
        if search.fathoms(self.bound):
            return Step.leave(self.bound)
        if self.bound >= high:
            return Step.split([self])
        if not self.closely and all(node.space.split is None for node, _ in self.members):
            return Step.split([replace(self, closely=True)])
        if self.closely and not clock.left:
            return Step.split([replace(self, slice=4 * self.slice)])
        apart = self.closely and (self.bound < before * (1 + ESTIMATED_LATER) or len(members) <= A_FEW)
        parts = [[own] for own in members] if apart else halves(members, lambda own: _measures(own[1]))
        return Step.split([self._below(each) for each in parts])

    def _below(self, members: list[tuple[AggregateNode, ChainAllocation]]) -> Node:
        raised = [
            (replace(node, bound=max(node.bound, self.bound), estimated=self.closely), problem)
            for node, problem in members
        ]
        own = JoinedSpacesNode.of(raised)
        return replace(own, closely=self.closely, aim=self.aim) if len(raised) > 1 else raised[0][0]


def _measures(problem: ChainAllocation) -> tuple[int, int, int]:
    """Time and bytes of all layers, and time of all sums of gradients, over the kinds."""
    times, sums = problem.forward + problem.backward, problem.reduce.sum() + problem.reduce_base.sum()
    return int(times.sum()), int(problem.resident.min(axis=1).sum() + problem.saved.sum()), int(sums)


def halves(every: Sequence[Own], measures: Callable[[Own], tuple[int, ...]]) -> list[list[Own]]:
    """Divide things by the logarithms of their measures, or each by itself if all are alike.

    One part is nearer to that of the least first measure, the other to the one farthest from it.
    """
    place = np.log1p(np.array([measures(own) for own in every], float))
    first = place[place[:, 0].argmin()]
    to_first = np.abs(place - first).max(axis=1)
    to_other = np.abs(place - place[to_first.argmax()]).max(axis=1)
    parts = [np.flatnonzero(side).tolist() for side in (to_first <= to_other, to_other < to_first)]
    return [[every[i] for i in part] for part in parts] if all(parts) else [[own] for own in every]
