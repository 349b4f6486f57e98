"""`AnyOrderNode`: device groups under any order, with plans and bounds from the joint formulation.

Orders that it finds become a schedule family of one schedule, so that they are simulated, written and run like others.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np

from pipeplan.core.cluster import StageDevices
from pipeplan.core.errors import InputError
from pipeplan.core.schedule import Action, Schedule
from pipeplan.schedules import FAMILIES, Family
from pipeplan.schedules.family import FOUND, closing, shares
from pipeplan.search.branch_and_bound import Node, PlanSearch, Step
from pipeplan.search.evaluate import evaluate
from pipeplan.search.regimes import REGIMES
from pipeplan.search.scheduling.lists import kind_of
from pipeplan.search.space.candidates import Candidate, partition_problem
from pipeplan.search.space.in_flight import held_at_most
from pipeplan.search.space.space import Space
from pipeplan_formulations.joint import Choice, JointPipeline, Search, Solution
from pipeplan_formulations.schedule import Orders

FOR_INCUMBENT = 0.3
"""Share of the time left for orders of the incumbent's partition, if it has the same device groups, before others."""
SLICE = 10.0
"""Most seconds of one step, so that other nodes are advanced as well."""

MOST = REGIMES.any_order_groups.most
"""Most device groups per micro-batch size, each of which is a search of its own."""


@dataclass
class AnyOrderNode(Node):
    """Device groups with the same number of replicas for all stages, and a micro-batch size."""

    bound: int
    space: Space
    groups: StageDevices
    size: int
    _search: "_OrderSearch | None" = field(default=None, repr=False)

    @property
    def rank(self) -> tuple[int, ...]:
        """After families, deep pipelines first: orders matter most there."""
        return (2, -len(self.groups))

    def advance(self, plan_search: PlanSearch) -> Step[Node]:
        """Solve one box of partitions; the node stays open while there are more."""
        begins = self._search is None
        search = self._search = self._search or _OrderSearch(plan_search, self._candidate)
        if search.open:
            search.deadline = time.monotonic() + min(plan_search.left, SLICE)
            search.step()
        if search.refuted:
            return Step.nothing()
        self.bound = max(self.bound, search.bound)
        if begins and search.open:
            self._propose(search, plan_search)
        return Step.split([self]) if search.open else Step.leave(self.bound)

    def _propose(self, search: Search, plan_search: PlanSearch) -> None:
        """Search orders of the incumbent's partition first, if it has this node's groups and micro-batch size."""
        best = plan_search.incumbent
        if best is not None:
            chain = best.candidate.chain
            if chain.groups == self.groups and chain.micro_batch == self.size:
                search.propose(best.boundaries, FOR_INCUMBENT * plan_search.left)

    @property
    def _candidate(self) -> Candidate:
        """The device groups under a family of one lane, which the orders found will replace."""
        some = self.space.candidates(self.groups, self.size)[0]
        return replace(some, family=FAMILIES["gpipe"], free=False)


class _OrderSearch(Search):
    """The joint search on a candidate; its solutions are simulated, its cutoff is that of the whole search."""

    def __init__(self, plan_search: PlanSearch, candidate: Candidate) -> None:
        self._plan_search, self._candidate = plan_search, candidate
        limits = plan_search.precise(0.0)
        if plan_search.backend == "exact":  # which promises one thread, and has no other solver of orders
            limits = replace(limits, workers=1)
        super().__init__(joint_problem(candidate), limits)

    @property
    def cutoff(self) -> int | None:
        """Cutoff of the plan search."""
        return self._plan_search.cutoff

    def improve(self, solution: Solution, _: int) -> None:
        """Simulate the orders, and submit the plan."""
        choice, orders = solution
        found = replace(self._candidate, family=searched_family(choice, orders))
        self._plan_search.submit(evaluate(self._plan_search.cluster_of(found), found, choice.boundaries))


def joint_problem(candidate: Candidate) -> JointPipeline:
    """The joint problem of a candidate's chain, over all orders.

    Backwards of layers whose I and W have no times are whole in the first part, as in every stage.
    """
    chain = candidate.chain
    whole = chain.parts == 0
    stages = chain.stages
    return JointPipeline(
        replace(
            partition_problem(candidate, (1,) * stages, (candidate.micro_batches,) * stages),
            backward=np.where(whole, chain.backward, chain.input_gradient),
            weight=np.where(whole, 0, chain.weight_gradient),
        ),
        joined=chain.backward,
    )


def searched_family(choice: Choice, orders: Orders) -> Family:
    """The family that writes these orders of one replica on every replica of the pipeline."""
    return Family(
        FOUND,
        partial(_write, choice=choice, orders=orders),
        partial(held_at_most, in_flight=choice.in_flight),
        frozenset(),
        "an order searched for these stages",
    )


def _write(replicas: Sequence[int], micro_batches: int, *, choice: Choice, orders: Orders) -> Schedule:
    lists = []
    for stage, own in shares(replicas, micro_batches):
        actions = (
            Action(kind_of(op, choice.split[stage]), stage, own[op.micro_batch])
            for op in orders[stage]
            if op.micro_batch < len(own)
        )
        lists.append((*actions, *closing((stage,), replicas)))
    return Schedule(FOUND, tuple(lists))


def equal_device_groups(space: Space, size: int) -> Iterator[StageDevices]:
    """Yield the device groups for a micro-batch size with equally many replicas per stage.

    Raises
    ------
    InputError
        If there are more than `MOST`.
    """
    job = replace(space.job, equal_replicas=True)
    every = space.all_groups(job, space.job.batch // size)
    found = list(islice(every, MOST + 1))
    if len(found) > MOST:
        raise InputError(
            f"schedules 'any' search every choice of devices for stages, and {space.cluster.name} has more than "
            f"{MOST:,} with equal replicas; restrict them (--depths, --replicas, --order given), or name schedules"
        )
    yield from found


def order_lower_bound(space: Space, size: int, groups: StageDevices) -> int:
    """Lower bound in nanoseconds on all orders on these stages.

    Let w_s be the work of the layers of stage s, each on its fastest kind of device. The backward counts as the shorter
    of B and I + W. Let ρ_s be the least factor by which the stage's kind is slower. Its device runs the M micro-batches
    of a replica: M ρ_s w_s ≤ T, so M Σ w_s ≤ T Σ 1 / ρ_s.
    """
    kinds = {device.kind.name: device.kind for device in space.cluster.devices}
    work = {}
    for name, kind in kinds.items():
        table = space.prices.table(kind, size)
        work[name] = table.forward + np.minimum(table.backward, table.input_gradient + table.weight_gradient)
    least = np.minimum.reduce(list(work.values()))
    busy = least > 0
    if not busy.any():
        return 0
    slower = {name: float((own[busy] / least[busy]).min()) for name, own in work.items()}
    count = -(-(space.job.batch // size) // len(groups[0]))
    speed = sum(1 / slower[group[0].kind.name] for group in groups)
    return int((1 - 1e-9) * count * int(least.sum()) / speed)  # rounded down to cover float errors
