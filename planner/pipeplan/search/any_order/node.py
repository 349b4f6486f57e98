"""A shape under any order: the node whose plans and bound come from the joint formulation."""

import time
from dataclasses import dataclass, field, replace

import numpy as np

from pipeplan.schedules import FAMILIES
from pipeplan.search.any_order.family import found_family
from pipeplan.search.candidates import Candidate, partition_problem
from pipeplan.search.judge import judge
from pipeplan.search.prove import Node, Prover, Step
from pipeplan.search.space import Space
from pipeplan.structure import Groups
from pipeplan_formulations.joint import JointPipeline, Search, Solution

FOR_INCUMBENT = 0.3
"""Share of the time left that the best families' partition gets, if it is of the shape, before others are looked at."""
SLICE = 10.0
"""Most seconds of one step, so that other shapes have their turn."""


@dataclass
class AnyOrderNode(Node):
    """A shape whose stages all have the same number of replicas, and a micro-batch size."""

    bound: int
    space: Space
    groups: Groups
    size: int
    _search: "_OrderSearch | None" = field(default=None, repr=False)

    @property
    def rank(self) -> tuple[int, ...]:
        """Behind families, deep pipelines first: theirs are the orders that matter."""
        return (2, -len(self.groups))

    def advance(self, prover: Prover) -> Step[Node]:
        """One box of partitions; the node stays open while there are more."""
        begins = self._search is None
        search = self._search = self._search or _OrderSearch(prover, self._candidate)
        if search.open:
            search.deadline = time.monotonic() + min(prover.left, SLICE)
            search.step()
        if search.refuted:
            return Step.nothing()
        self.bound = max(self.bound, search.bound)
        if begins and search.open:
            self._propose(search, prover)
        return Step.split([self]) if search.open else Step.leave(self.bound)

    def _propose(self, search: Search, prover: Prover) -> None:
        """The incumbent's partition, if it is of this shape, has its orders looked at before others."""
        best = prover.incumbent
        if best is not None:
            chain = best.candidate.chain
            if chain.groups == self.groups and chain.micro_batch == self.size:
                search.propose(best.boundaries, FOR_INCUMBENT * prover.left)

    @property
    def _candidate(self) -> Candidate:
        """The shape under some family of one lane, which the orders that are found take the place of."""
        some = self.space.candidates(self.groups, self.size)[0]
        return replace(some, family=FAMILIES["gpipe"], free=False)


class _OrderSearch(Search):
    """The joint search on a candidate: its solutions are simulated, and its cutoff is that of the whole search."""

    def __init__(self, prover: Prover, candidate: Candidate) -> None:
        self._prover, self._candidate = prover, candidate
        super().__init__(joint_problem(candidate), prover.precise(0.0), backend=prover.backend)

    @property
    def cutoff(self) -> int | None:
        """That of the plans known."""
        return self._prover.cutoff

    def improve(self, solution: Solution, _: int) -> None:
        """Simulate the orders, and submit the plan."""
        choice, orders = solution
        found = replace(self._candidate, family=found_family(choice, orders))
        self._prover.submit(judge(self._prover.cluster, found, choice.boundaries))


def joint_problem(candidate: Candidate) -> JointPipeline:
    """A candidate's chain with all orders open.

    Layers whose I and W have no times are not split.
    """
    chain = candidate.chain
    whole = chain.input_gradient + chain.weight_gradient == 0
    stages = chain.stages
    return JointPipeline(
        replace(
            partition_problem(candidate, (1,) * stages, (candidate.micro_batches,) * stages),
            backward=np.where(whole, chain.backward, chain.input_gradient),
            weight=np.where(whole, 0, chain.weight_gradient),
        ),
        joined=chain.backward,
    )
