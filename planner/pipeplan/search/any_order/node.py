"""A shape under any order: the node whose plans and bound come from the joint formulation."""

from dataclasses import dataclass, field, replace

import numpy as np

from pipeplan.schedules import FAMILIES
from pipeplan.search.any_order.family import found_family
from pipeplan.search.candidates import Candidate, partition_problem
from pipeplan.search.judge import judge
from pipeplan.search.prove import Node, Prover, Step
from pipeplan.search.space import Space
from pipeplan.structure import Groups
from pipeplan_formulations.joint import Choice, JointPipeline, Search
from pipeplan_formulations.schedule import Orders

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
    _search: Search | None = field(default=None, repr=False)

    @property
    def rank(self) -> tuple[int, ...]:
        """Behind families, deep pipelines first: theirs are the orders that matter."""
        return (2, -len(self.groups))

    def advance(self, prover: Prover) -> Step[Node]:
        """One box of partitions; the node stays open while there are more."""
        begins = self._search is None
        search = self._search = self._search or self._begun(prover)
        if search.open:
            search.step(min(prover.left, SLICE))
        if search.bound is None:  # nothing fits
            return Step.nothing()
        self.bound = max(self.bound, search.bound)
        if begins and search.open:
            self._propose(search, prover)
        return Step.split([self]) if search.open else Step.leave(self.bound)

    def _begun(self, prover: Prover) -> Search:
        candidate = self._candidate

        def offer(choice: Choice, orders: Orders, _: int) -> None:
            found = replace(candidate, family=found_family(choice, orders))
            prover.submit(judge(prover.cluster, found, choice.boundaries))

        return Search(joint_problem(candidate), prover.precise(0.0), offer, lambda: prover.cutoff, prover.backend)

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
