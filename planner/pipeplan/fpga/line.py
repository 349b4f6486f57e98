"""`Line`: devices that may divide layers, with one micro-batch size, one schedule family and one device order."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Objective
from pipeplan.costs.chain import UNLIMITED, Array, Chain
from pipeplan.schedules import Family
from pipeplan_formulations.fractional import FractionalPartition


@dataclass(frozen=True)
class Line:
    """The chain on these devices, its layers' times with weights on chip, and its schedule family.

    ``chain`` has one device per stage, and the times with streamed weights. A layer has equally many bytes on all its
    devices (`alike`). ``on_chip`` has forward and backward times, each of shape (S, n).
    """

    cluster: Cluster
    chain: Chain
    on_chip: tuple[Array, Array]
    micro_batches: int
    family: Family
    objective: Objective

    @property
    def label(self) -> str:
        """Description for users: ``'vcu118 vcu129, 8 micro-batches of 2, 1f1b-as, divided layers'``."""
        kinds = " ".join(device.kind.name for device in self.chain.devices)
        return (
            f"{kinds}, {self.micro_batches} micro-batches of {self.chain.micro_batch}, {self.family.name}, "
            "divided layers"
        )

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """Most micro-batches that each stage holds; an endless pipeline fills up even if a step has few of them."""
        step = self.objective is Objective.STEP
        many = self.micro_batches if step else max(self.micro_batches, 2 * self.chain.stages)
        return self.family.in_flight((1,) * self.chain.stages, many)

    @property
    def crossing(self) -> Array:
        """Bytes over each layer boundary; zeros on a line of one device, which has no transfers."""
        bytes_over: Array = self.chain.boundary.max(axis=0, initial=0)
        return bytes_over

    @cached_property
    def own_bytes(self) -> Array:
        """Bytes of each layer's output that a later device needs; the last layer's output goes to the loss."""
        crossing: Array = np.append(self.crossing, self.chain.output[0, -1])
        least: Array = np.minimum(self.chain.output[0], crossing)
        return least

    @cached_property
    def through_bytes(self) -> Array:
        """Bytes that cross in front of each layer; none before the first, as devices load the batch themselves."""
        return np.concatenate([[0], self.crossing])

    @cached_property
    def problem(self) -> FractionalPartition:
        """The fractional partition problem, in nanoseconds and bytes, with reserve for shares rounded up to bytes."""
        chain = self.chain
        counts = np.array(self.in_flight, np.int64)
        near, far = self._lanes(*self.on_chip), self._lanes(chain.forward, chain.backward)
        limit = np.where(
            chain.limit == UNLIMITED, UNLIMITED, np.maximum(chain.limit - chain.runtime - 6 - 2 * counts, 0)
        )
        chips = [device.kind.on_chip for device in chain.devices]
        return FractionalPartition(
            forward=near[0],
            backward=near[1],
            forward_streamed=far[0],
            backward_streamed=far[1],
            update=chain.update,
            through=self._link_times(self.through_bytes, up=False),
            own=self._link_times(self.own_bytes, up=True),
            latency=chain.latency,
            resident=chain.resident[0],
            saved=chain.saved[0],
            workspace=chain.workspace[0] * (2 if self.family.two_lanes else 1),
            weights=chain.weights[0] + chain.gradients[0] + chain.frozen[0],
            bytes_through=self.through_bytes,
            bytes_own=self.own_bytes,
            in_flight=counts,
            limit=limit,
            on_chip=np.array([UNLIMITED if chip is None else chip for chip in chips], np.int64),
            micro_batches=self.micro_batches,
            objective="bottleneck" if self.objective is Objective.BOTTLENECK else "step",
            two_lanes=self.family.two_lanes,
            ahead={"1f1b-as": counts, "gpipe": np.ones_like(counts)}.get(self.family.name),
        )

    @property
    def per(self) -> int:
        """Divisor of the problem's values: a bottleneck is the time per sample."""
        return 1 if self.objective is Objective.STEP else self.chain.micro_batch

    @property
    def rounding(self) -> int:
        """Nanoseconds by which the problem's values may exceed the true ones.

        ``own`` is rounded up, and no inequality counts more than two sends per micro-batch and two per link.
        """
        return 2 * (self.micro_batches + self.chain.stages) if self.objective is Objective.STEP else 1

    def select(self, stages: list[int]) -> "Line":
        """Return the line with the devices of ``stages`` only."""
        forward, backward = self.on_chip
        return replace(self, chain=self.chain.select(tuple(stages)), on_chip=(forward[stages], backward[stages]))

    def _lanes(self, forward: Array, backward: Array) -> tuple[Array, Array]:
        """Times on each lane. On two lanes each takes as long as both."""
        return (forward + backward,) * 2 if self.family.two_lanes else (forward, backward)

    def _link_times(self, sizes: Array, up: bool) -> Array:
        """Nanoseconds of these bytes on each link. Parts are rounded up, sums down: no sum exceeds its parts."""
        devices = self.chain.devices
        rates = [self.cluster.link(a, b).bandwidth for a, b in pairwise(devices)]
        rows = [[0 if rate is None else _nanoseconds(size, rate, up) for size in sizes.tolist()] for rate in rates]
        return np.array(rows, np.int64).reshape(len(rates), len(sizes))


def _nanoseconds(size: int, rate: int, up: bool) -> int:
    return -(-size * 10**9 // rate) if up else size * 10**9 // rate
