"""A candidate fixes everything but the boundaries: how many stages, how many micro-batches, which schedule family."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeplan.chain import UNLIMITED, Boundaries, Chain
from pipeplan.cluster import Cluster, Overlap
from pipeplan.errors import InputError
from pipeplan.job import Job, Objective
from pipeplan.model import Model
from pipeplan.pricing import price
from pipeplan.schedules import FAMILIES, Family, family
from pipeplan_formulations.partition import ChainPartition


@dataclass(frozen=True)
class Candidate:
    """One depth, one micro-batch size, one family, and the chain priced for them."""

    chain: Chain
    micro_batches: int
    family: Family
    objective: Objective

    @property
    def depth(self) -> int:
        """Number of stages."""
        return self.chain.stages

    @property
    def replicas(self) -> tuple[int, ...]:
        """Number of devices that share each stage."""
        return (1,) * self.depth

    @property
    def label(self) -> str:
        """For people: ``'4 stages, 8 micro-batches of 2, 1f1b-sno'``."""
        stages = "1 stage" if self.depth == 1 else f"{self.depth} stages"
        return f"{stages}, {self.micro_batches} micro-batches of {self.chain.micro_batch}, {self.family.name}"

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """Most micro-batches that each stage holds; an endless pipeline is filled however few there are in a step."""
        many = self.micro_batches if self.objective is Objective.STEP else max(self.micro_batches, 2 * self.depth)
        return self.family.in_flight(self.replicas, many)

    @cached_property
    def problem(self) -> ChainPartition:
        """The partition problem, in nanoseconds and bytes."""
        chain = self.chain
        return ChainPartition(
            forward=chain.forward,
            backward=chain.backward,
            update=chain.update,
            send=chain.send,
            send_back=chain.send,
            link=chain.send,
            latency=chain.latency,
            resident=chain.resident,
            saved=chain.saved,
            received=chain.boundary,
            workspace=chain.workspace * (2 if self.family.two_lanes else 1),
            in_flight=np.array(self.in_flight, dtype=np.int64),
            limit=np.where(chain.limit == UNLIMITED, UNLIMITED, np.maximum(chain.limit - chain.runtime, 0)),
            micro_batches=self.micro_batches,
            overlap=chain.overlap.value,
            objective=self.objective.value,
        )

    @cached_property
    def floor(self) -> int:
        """A bound that costs nothing."""
        return self.problem.lower_bound()

    def fits(self, boundaries: Boundaries) -> bool:
        """Whether these boundaries keep every device's memory limit."""
        return self.problem.feasible(boundaries)


def candidates(model: Model, cluster: Cluster, job: Job) -> list[Candidate]:
    """Every candidate of the searched space: least bound first, and of equal ones that which holds the least.

    A plan of depth d uses the first d devices in the order in which the cluster lists them.
    """
    from pipeplan.cost import available_micro_batches

    devices = cluster.devices
    depths = [d for d in job.depths or range(1, len(devices) + 1) if d <= min(len(devices), len(model.layers))]
    kinds = [device.kind for device in devices[: max(depths, default=0)]]
    sizes = available_micro_batches(model, kinds, job.batch, extrapolate=job.extrapolate)
    if job.micro_batches:
        sizes = tuple(size for size in (job.batch // count for count in job.micro_batches))
    families = [family(name) for name in job.schedules] or default_families(cluster, job)
    _check_lanes(families, cluster)
    found = []
    for size in sizes:
        chain = price(model, cluster, devices[: max(depths)], size, job)
        found += [
            Candidate(chain.head(depth), job.batch // size, each, job.objective)
            for depth in depths
            for each in (families if depth > 1 else [leanest(families, 1)])
        ]
    return sorted(found, key=lambda candidate: (candidate.floor, sum(candidate.in_flight)))


def _check_lanes(families: list[Family], cluster: Cluster) -> None:
    """Two lanes on a device that stands still while it sends are a contradiction, and the bounds do not hold for it."""
    for each in families:
        if each.two_lanes and cluster.overlap is Overlap.NONE:
            raise InputError(
                f"schedule {each.name!r} computes on two lanes at once, but the devices of {cluster.name!r} wait while "
                "they send (overlap: false); leave the schedule out, or set overlap to true or stream"
            )


def default_families(cluster: Cluster, job: Job) -> list[Family]:
    """The families that suit the cluster; for the bottleneck, the one that holds least, as any order gives the same."""
    suited = [family for family in FAMILIES.values() if cluster.overlap in family.suits]
    return suited if job.objective is Objective.STEP else [leanest(suited, len(cluster.devices))]


def leanest(families: list[Family], depth: int) -> Family:
    """The family that holds the fewest micro-batches; on one device, where nothing overlaps, that is all there is."""
    return min(families, key=lambda family: sum(family.in_flight((1,) * depth, 64)))
