"""`Candidate`: device groups, number of micro-batches and schedule family: a plan without its stage boundaries."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from pipeplan.core.cluster import Cluster, Overlap, StageDevices
from pipeplan.core.collector import without_collector
from pipeplan.core.folding import Folding, Laid
from pipeplan.core.job import Objective
from pipeplan.core.pipeline import Pipeline, Placement
from pipeplan.core.schedule import Schedule
from pipeplan.core.shared_weights import with_reductions
from pipeplan.core.wording import counted, in_a_row, stages_of, team_suffix, zero_suffix
from pipeplan.costs.assembly import assemble, own_ranks
from pipeplan.costs.chain import UNLIMITED, Array, Boundaries, Chain
from pipeplan.costs.pricing import Prices
from pipeplan.schedules import PLACED, Family
from pipeplan.schedules.family import of_stages
from pipeplan.search.space.constraints import Constraints, Mask
from pipeplan.search.space.in_flight import FREE, InFlightBox, free_family
from pipeplan_formulations.partition import ChainPartition, LinkResource

CHAINS = 4
"""Most chains of unfolded layers that are kept."""


@dataclass(frozen=True)
class Unfolding:
    """What a candidate of super layers stands for: the folding, and prices and constraints of its layers."""

    folding: Folding
    prices: Prices
    constraints: Constraints
    _chains: dict[tuple[object, ...], Chain] = field(default_factory=dict, compare=False, repr=False)

    @property
    def laid(self) -> Laid:
        """How stages lie on devices."""
        return self.folding.laid

    def chain(self, groups: StageDevices, size: int) -> Chain:
        """The layers of the model on device groups of stages, priced once for the plans that follow each other."""
        key = *(tuple(device.index for device in group) for group in groups), size
        if key not in self._chains:
            if len(self._chains) >= CHAINS:
                self._chains.clear()
            self._chains[key] = self.prices.chain(groups, size)
        return self._chains[key]


@dataclass(frozen=True)
class Candidate:
    """Device groups and a micro-batch size, the chain priced for them, and a schedule family.

    Attributes
    ----------
    chain : Chain
    micro_batches : int
    family : Family
    objective : Objective
    cuts : array of bool, shape (n − 1,)
        Whether a stage may end after layer c.
    where : array of bool, shape (S, n)
        Whether layer i may be on stage s.
    free : bool
        Whether 1F1B may hold other numbers of micro-batches than the named families do.
    resources : tuple of LinkResource
        Link resources that transfers share.
    slower_pairs : array of int, optional
        What slow pairs of replicas add to the warm-up bound of each stage, where micro-batches are run in order.
    placement : tuple of tuple of int, optional
        The ranks of each stage, of which several stages may share some; by default each stage has ranks of its own.
    unfolding : Unfolding or None
        Where stages are devices that run several stages each, of super layers.
    again : tuple of tuple of int, optional
        The layers that each stage recomputes, where they are chosen for all stages of a device together.
    """

    chain: Chain
    micro_batches: int
    family: Family
    objective: Objective
    cuts: Mask
    where: Mask
    free: bool = False
    resources: tuple[LinkResource, ...] = ()
    slower_pairs: Array | None = None
    placement: Placement = ()
    unfolding: Unfolding | None = None
    again: tuple[tuple[int, ...], ...] | None = None

    @property
    def depth(self) -> int:
        """Number of stages."""
        return self.chain.stages

    @property
    def replicas(self) -> tuple[int, ...]:
        """Number of devices that share each stage."""
        return self.chain.replicas

    @property
    def ranks(self) -> tuple[int, ...]:
        """The device of each rank."""
        placement = self.placement or own_ranks(self.replicas)
        device = {
            rank: device.index
            for ranks, group in zip(placement, self.chain.groups, strict=True)
            for rank, device in zip(ranks, group, strict=True)
        }
        return tuple(device[rank] for rank in range(len(device)))

    @property
    def chunks(self) -> int:
        """Stages of each device."""
        return max(Counter(rank for ranks in self.placement for rank in ranks).values(), default=1)

    @property
    def laid(self) -> Laid | None:
        """Stages of each device, and whether they turn, under a family that places stages itself; None elsewhere."""
        if self.unfolding is not None:
            return self.unfolding.laid
        name = self.family.name
        return Laid(self.chunks, PLACED[name].turns) if name in PLACED else None

    @property
    def label(self) -> str:
        """Description for users: ``'4 stages of 2-1-1-1 replicas, 8 micro-batches of 2, ZeRO-1, 1f1b-sno'``."""
        many = counted(self.micro_batches, "micro-batch")
        level = zero_suffix(self.chain.zero) if max(self.replicas) > 1 else ""
        split = self.chain.split
        sizes = [group[0].kind.team for group in self.chain.groups]
        teams = team_suffix(sizes, split.parallelism if split else (), mesh=split.mesh if split else ())
        cut = f" in {self.chain.slices} slices" if self.chain.slices > 1 else ""
        each = f" ({self.chunks} on each {'team' if max(sizes) > 1 else 'device'})" if self.chunks > 1 else ""
        return f"{stages_of(self.replicas)}{each}, {many} of {self.chain.micro_batch}{cut}{level}{teams}, {self._order}"

    @property
    def _order(self) -> str:
        counts = f" with {in_a_row(self.in_flight)} in flight" if self.family.name == FREE else ""
        return f"{self.family.name}{counts}"

    @property
    def samples(self) -> int:
        """Samples per step."""
        return self.micro_batches * self.chain.micro_batch

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """Most micro-batches, or slices of them, that a replica of each stage holds.

        For the bottleneck objective the pipeline is endless, so it fills up even if a step has few micro-batches.
        """
        return in_flight(self.family, self.replicas, self.micro_batches, self.objective)

    @cached_property
    def problem(self) -> ChainPartition:
        """The partition problem, in nanoseconds and bytes."""
        begun = tuple(-(-held // self.chain.slices) for held in self.in_flight)  # micro-batches, not slices
        return partition_problem(self, self.in_flight, begun)

    @property
    def cut_by_paths(self) -> bool:
        """Whether critical paths are inequalities of the problem.

        Those of slices are not, whose actions differ in length, nor those of devices with several stages, or of runs
        through batches, which are no steps.
        """
        whole = self.chain.slices == 1 and self.unfolding is None
        return self.objective.simulated and whole and not self.chain.staleness

    @cached_property
    def lower_bound(self) -> int:
        """A lower bound in nanoseconds without any search."""
        return self.problem.lower_bound()

    @without_collector()
    def schedule(self, pipeline: Pipeline) -> Schedule:
        """The family's schedule on a pipeline that `pipeplan.costs.assembly.assemble` made of the chain."""
        return with_reductions(self.family.write(self.replicas, self.micro_batches), pipeline.tied)

    def lists(self, pipeline: Pipeline, replicas: int, micro_batches: int) -> Schedule:
        """The same of a part of the replicas, equally many of all stages, which sum with the others."""
        alone = [(stage,) for stage, many in enumerate(self.replicas) if many > 1]
        written = self.family.write((replicas,) * self.depth, micro_batches)
        return with_reductions(written, [*alone, *pipeline.tied])

    def certain(self, pipeline: Pipeline) -> Pipeline:
        """The pipeline with only those stages tied that are tied in every partition.

        That is a relaxation. The precedence of its actions does not depend on the partition, as inequalities over all
        partitions need (`pipeplan.search.path_cuts`).
        """
        ends = ((0, self.depth - 1),) if self.chain.ends_tied and self.depth > 1 else ()
        return replace(pipeline, tied=ends)

    def fits(self, boundaries: Boundaries) -> bool:
        """Return True if these boundaries keep every device's memory limit and every constraint."""
        return self.problem.feasible(boundaries)

    def holds(self, boundaries: Boundaries) -> bool:
        """Return True if these boundaries keep every device's memory limit."""
        return self.problem.holds(boundaries)

    def with_max_in_flight(self, cluster: Cluster, boundaries: Boundaries, among: InFlightBox) -> "Candidate | None":
        """Return the candidate with as many micro-batches in flight as fit, of a box; None if these are its own."""
        return next(self._with_max_in_flight(cluster, boundaries, [among]), None)

    def _with_max_in_flight(
        self, cluster: Cluster, boundaries: Boundaries, boxes: Iterable[InFlightBox]
    ) -> "Iterator[Candidate]":
        """Yield those candidates with counts of these boxes, where there are some."""
        if not self.free or not self.family.alternates:
            return
        pipeline = assemble(self.chain, cluster, boundaries, self.recompute(boundaries))
        most_in_flight = []
        for stage, ranks in zip(pipeline.stages, pipeline.placement, strict=True):
            limit = pipeline.limits[ranks[0]]
            left = limit - pipeline.runtime[ranks[0]] - stage.resident - stage.workspace
            most_in_flight.append(left // stage.held if stage.held and limit != UNLIMITED else UNLIMITED)
        for counts in dict.fromkeys(box.fill_memory(most_in_flight) for box in boxes):
            other = replace(self, family=free_family(counts))
            if counts != self.in_flight and other.fits(boundaries):
                yield other

    def with_more_in_flight(self, cluster: Cluster, boundaries: Boundaries) -> "list[Candidate]":
        """Return candidates with as many micro-batches in flight as fit: up to SO's, and up to the most searched.

        The most hide longer transfers, but with SO's counts the first backwards, and so the last ones, come earlier.
        """
        every = (box(self.replicas, self.micro_batches) for box in (InFlightBox.up_to_so, InFlightBox.of))
        return list(self._with_max_in_flight(cluster, boundaries, every))

    def recompute(self, boundaries: Boundaries) -> tuple[tuple[int, ...], ...]:
        """For each stage the layers to recompute in the backward so that it fits in memory, in the least time."""
        if self.again is not None:
            return self.again
        spans = enumerate(pairwise(boundaries))
        return tuple(self.problem.recompute(s, a, b) or () for s, (a, b) in spans)

    def unfolded(self, boundaries: Boundaries) -> "tuple[Candidate, Boundaries]":
        """Return the candidate of the stages themselves, and their boundaries: this one if a device has one stage."""
        if self.unfolding is None:
            return self, boundaries
        folding, ranks = self.unfolding.folding, own_ranks(self.replicas)
        repeated = [self.problem.recompute(d, a, b) or () for d, (a, b) in enumerate(pairwise(boundaries))]
        homes = [(round_, d) for round_ in range(folding.rounds) for d in folding.in_turn(range(self.depth), round_)]
        groups = tuple(self.chain.groups[device] for _, device in homes)
        chain = self.unfolding.chain(groups, self.chain.micro_batch)
        found = replace(
            self,
            chain=chain.in_halves if self.family.splits else chain,
            family=of_stages(self.family, self.depth),
            cuts=self.unfolding.constraints.cuts,
            where=self.unfolding.constraints.where(groups),
            placement=tuple(ranks[device] for _, device in homes),
            unfolding=None,
            again=tuple(folding.layers_of(repeated[device], round_) for round_, device in homes),
        )
        return found, folding.unfolded(boundaries)


def in_flight(family: Family, replicas: tuple[int, ...], micro_batches: int, objective: Objective) -> tuple[int, ...]:
    """Most micro-batches that a replica of each stage holds: in one step, or in an endless pipeline."""
    many = micro_batches if objective.simulated else max(micro_batches, 2 * sum(replicas))
    return family.in_flight(replicas, many)


def partition_problem(candidate: Candidate, held: tuple[int, ...], warm_up: tuple[int, ...]) -> ChainPartition:
    """Return the partition problem of the candidate's chain, in nanoseconds and bytes.

    Parameters
    ----------
    held, warm_up : tuple of int
        For each stage: micro-batches (or slices) that its memory must hold, and the most forwards of a replica before
        its first backward. A relaxation over several families has the least of one and the most of the other.
    """
    chain, two_lanes, splits = candidate.chain, candidate.family.two_lanes, candidate.family.splits
    # Devices of one kind share one row of the byte tables.
    alike = len({group[0].kind.name for group in chain.groups}) == 1
    tables = chain.tables()
    tables["update"] = chain.update + chain.lost  # both once per step, behind the last backward
    tables["limit"] = np.where(chain.limit == UNLIMITED, UNLIMITED, np.maximum(chain.limit - chain.runtime, 0))
    beside = chain.forward_workspace
    if alike:
        tables |= {name: tables[name][0] for name in ("saved", "output", "workspace", "rebuilt")}
        beside = beside[0]
    backward, first_backward = chain.backward, chain.first_backward
    if splits:
        weight, first_weight = chain.weight_gradient, chain.first_weight_gradient
        backward, first_backward = chain.input_gradient, chain.first_input_gradient
        if candidate.family.joins:
            backward, weight = chain.least_first_part, chain.least_second_part
            first_backward = np.minimum.reduce([first_backward, chain.first_backward, backward])
            first_weight = 0 * first_weight
        tables |= {"backward": backward, "weight": weight, "ahead_weight": first_weight}
    parted = chain.slices > 1 or chain.rounds > 1
    if parted:
        tables |= {"ahead_forward": chain.first_forward, "ahead_backward": first_backward}
    if chain.turns:
        tables |= {"service_forward": chain.forward // chain.rounds, "service_backward": backward // chain.rounds}
        tables |= {"service_weight": weight // chain.rounds} if splits else {}
    waits = chain.overlap is Overlap.NONE
    if chain.slices > 1 and chain.unlike_slices is None and not waits:  # slices grow by equal steps
        tables["late_forward"] = 2 * chain.forward // chain.slices - chain.first_forward
        tables["late_backward"] = 2 * backward // chain.slices - first_backward
    return ChainPartition(
        **tables,
        round_trip="ahead" if parted and not chain.turns else "own",
        beside=beside if two_lanes else None,
        send_back=chain.send,
        link=chain.send * chain.passages,
        received=chain.received,
        in_flight=np.array(held, dtype=np.int64),
        warm_up=np.array(warm_up, dtype=np.int64),
        micro_batches=candidate.micro_batches,
        samples=candidate.samples,
        link_counts=chain.link_counts(candidate.micro_batches),
        counts=np.array([-(-candidate.micro_batches // r) for r in chain.replicas], np.int64),
        alternating=not two_lanes and chain.rounds == 1,
        slower_pairs=candidate.slower_pairs if candidate.family.alternates and not candidate.placement else None,
        resources=candidate.resources,
        cuts=candidate.cuts,
        where=candidate.where,
        ties=tuple(
            shared.as_tie(gathers=candidate.objective is Objective.PERIOD and not chain.staleness)
            for shared in chain.shared
        ),
        overlap=chain.overlap.value,
        objective="delayed" if chain.staleness else candidate.objective.value,
    )
