"""`FoldedPartitionsNode`: many partitions of devices with several stages each, first those of least bound of their row.

::

    partition     │ 0 1 2 │ 3 4 5 │ 6 7 │       simulated; its critical path is a bound of all others
    the others    a list of those that no path known excludes; if there are too many, by ranges of cuts:
                  first cut before 3, or behind; at 3 and the second one before 6, or behind; …

Many partitions are never looked at: paths exclude what begins like them.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeplan.costs.chain import Array, Boundaries
from pipeplan.search.branch_and_bound import Node, PlanSearch, Step
from pipeplan.search.folded_paths import FoldedPaths, has_folded_paths
from pipeplan.search.nodes.partitions import PartitionsNode, recomputes_least, simulate
from pipeplan.search.space.candidates import Candidate
from pipeplan_formulations.partition.listing import below
from pipeplan_formulations.partition.spans import NEVER

LISTED = 40_000
"""Most partitions of a list, and of what they begin with."""
KEPT = 8
"""Paths that are kept for partitions that are not listed."""

Ranges = tuple[tuple[int, int], ...]


@dataclass
class FoldedPartitionsNode(Node):
    """Partitions of a candidate whose edges lie in given ranges.

    Attributes
    ----------
    stages : sequence of array
        The row's bound of each device, by its end and its first super layer.
    paths : FoldedPaths or None
        None where critical paths are no inequalities of other partitions.
    known : deque of array
        Shares of devices in critical paths, the latest of all partitions of the candidate.
    ranges : tuple of (int, int)
        Least and largest first super layer of each device.
    best : tuple of int
        The partition of least bound of its row.
    """

    bound: int
    candidate: Candidate = field(repr=False)
    stages: Sequence[Array] = field(repr=False)
    paths: FoldedPaths | None = field(repr=False)
    known: deque[Array] = field(repr=False)
    ranges: Ranges
    best: Boundaries

    @classmethod
    def of(
        cls, least: int, search: PlanSearch, candidate: Candidate, stages: Sequence[Array]
    ) -> "FoldedPartitionsNode | None":
        """The node of all partitions of a candidate, if there are any; its bound is ``least`` or more."""
        paths = None
        if has_folded_paths(candidate):
            horizon = NEVER if search.cutoff is None else search.cutoff
            paths = FoldedPaths(candidate, search.cluster_of(candidate), [own < horizon for own in stages])
        every = tuple((s, stages[0].shape[0] - 1) for s in range(len(stages)))
        return cls(least, candidate, stages, paths, deque(maxlen=KEPT), every, ())._within(every)

    def _within(self, ranges: Ranges) -> "FoldedPartitionsNode | None":
        """The node of such ranges, if they hold a partition."""
        bound, best = _least(self.stages, ranges, np.maximum)
        if bound >= NEVER:
            return None
        if self.known:
            bound = max(bound, _least([*_mean(self.known)], ranges, np.add)[0])
        return FoldedPartitionsNode(
            max(self.bound, bound), self.candidate, self.stages, self.paths, self.known, ranges, best
        )

    @property
    def rank(self) -> tuple[int, ...]:
        """As device groups."""
        return (1, len(self.stages))

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Simulate the partition of least bound, and list the others, or open their ranges."""
        if not search.affords(self.candidate):
            return Step.leave(self.bound)
        left: list[int] = []
        bound = self.candidate.problem.evaluate(self.best, optimistic=True)
        if search.fathoms(bound):
            left.append(bound)
        else:
            if self.candidate.fits(self.best):
                simulate(search, self.candidate, self.best)
            if not recomputes_least(self.candidate, self.best):
                left.append(max(self.bound, bound))
        nodes: list[Node] = []
        listed = self._listed(search) if self.paths is not None else None
        if listed is not None:
            others = listed[(listed != self.best).any(axis=1)]
            left += [] if search.cutoff is None else [search.cutoff]
            nodes += [PartitionsNode(self.bound, self.candidate, edges=others, folded=self.paths)] * bool(len(others))
            return Step.leave(min(left), nodes) if left else Step.split(nodes)
        for ranges in self._others():
            node = self._within(ranges)
            if node is not None and search.fathoms(node.bound):
                left.append(node.bound)
            elif node is not None:
                nodes.append(node)
        return Step.leave(min(left), nodes) if left else Step.split(nodes)

    def _listed(self, search: PlanSearch) -> Array | None:
        """The partitions that may be better than the incumbent; None if there are too many."""
        assert self.paths is not None
        self.known.append(self.paths.find(self.best))
        horizon = NEVER if search.cutoff is None else search.cutoff
        every = np.stack([*self.known, _mean(self.known)])
        n = every.shape[-1] - 1
        for s, (own, (low, high), ends) in enumerate(
            zip(self.stages, self.ranges, (*self.ranges[1:], (n, n)), strict=True)
        ):
            number = np.arange(n + 1)
            inside = (number >= low) & (number <= high) & ((number >= ends[0]) & (number <= ends[1]))[:, None]
            every[:, s, (own >= horizon) | ~inside] = NEVER
        return below(every, horizon, LISTED)

    def _others(self) -> Iterator[Ranges]:
        """Yield the ranges of all other partitions: the s-th cut before that of this one, or behind, others alike."""
        for s, edge in list(enumerate(self.best))[1:-1]:
            low, high = self.ranges[s]
            alike = tuple((b, b) for b in self.best[:s])
            for own in ((low, edge - 1), (edge + 1, high)):
                if own[0] <= own[1]:
                    yield (*alike, own, *self.ranges[s + 1 :])


def _mean(known: Collection[Array]) -> Array:
    """Shares in the mean of some paths, which is no more than the longest of them."""
    found: Array = np.sum([shares // len(known) for shares in known], axis=0)
    return found


def _least(
    stages: Sequence[Array] | Array, ranges: Ranges, join: Callable[[Array, Array], Array]
) -> tuple[int, Boundaries]:
    """The least of what numbers of devices are together, and the partition that has it; `NEVER` if there is none.

    ``stages``: of each device by its end and its first super layer.
    """
    n = stages[0].shape[0] - 1
    reach = [np.full(n + 1, NEVER)]
    reach[0][0] = 0
    for own, (low, high) in zip(stages, (*ranges[1:], (n, n)), strict=True):
        after = np.full(n + 1, NEVER)
        after[low : high + 1] = np.minimum(join(own[low : high + 1], reach[-1]).min(axis=1), NEVER)
        reach.append(after)
    edges = [n]
    for own, before in zip(stages[::-1], reach[-2::-1], strict=True):
        edges.append(int(join(own[edges[-1]], before).argmin()))
    return int(reach[-1][n]), tuple(reversed(edges))
