"""`Pipeline`: stages on devices, with their times, memory and transfers; a schedule runs on it.

::

    stage 0 ──transfers[0]──▶ stage 1 ──transfers[1]──▶ stage 2
            ◀──returns[0]────         ◀──returns[1]────

A stage may have several *replicas*, each on a device of its own. Micro-batch m runs on replica m mod r. The pairs of
sender and receiver therefore repeat after the least common multiple of two neighbours' numbers of replicas:

::

    stage 0, r = 2      d0 ── 0 2 4 …     m = 0: d0 ▶ d2   1: d1 ▶ d3   2: d0 ▶ d4
                        d1 ── 1 3 5 …     m = 3: d1 ▶ d2   4: d0 ▶ d3   5: d1 ▶ d4   then again from the first
    stage 1, r = 3      d2 d3 d4
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import lcm
from typing import TypeAlias

from pipeplan.core.cluster import Overlap
from pipeplan.core.schedule import Kind

Times: TypeAlias = int | tuple[int, ...]
"""Nanoseconds of an action: one number for all token slices of a micro-batch, or one number per slice."""

_FIELDS: Mapping[Kind, str] = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT_GRADIENT: "input_gradient",
    Kind.WEIGHT_GRADIENT: "weight_gradient",
    Kind.REDUCE: "reduce",
    Kind.UPDATE: "update",
    Kind.GATHER: "gather",
}


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients of some neighbouring layers of a stage, summed in one collective while the last backward still runs.

    Or their parameters, gathered in one collective while the first forward runs: the same with time reversed.

    Attributes
    ----------
    layers : int
        Number of layers. A stage's first bucket has its last layers. 0 are weights that stages share, and computation
        that is not done while other buckets run beside it.
    ready : int
        Nanoseconds before the end of the last backward at which the gradients are complete, or behind the begin of the
        first forward at which the parameters are needed.
    time : int
        Nanoseconds that the collective takes.
    """

    layers: int
    ready: int
    time: int


def exposed(buckets: Sequence[Bucket]) -> int:
    """Return the nanoseconds from the end of the last backward to the end of the last sum.

    So long before the begin of the first forward must gathers begin, which come in the opposite order.
    """
    end: int | None = None
    for bucket in buckets:
        end = (-bucket.ready if end is None else max(end, -bucket.ready)) + bucket.time
    return max(end or 0, 0)


def layer_counts(buckets: Sequence[Bucket]) -> list[int]:
    """Return the number of layers of each bucket that has some."""
    return [bucket.layers for bucket in buckets if bucket.layers]


@dataclass(frozen=True, slots=True)
class Stage:
    """Times (nanoseconds) and memory (bytes) of one replica of a stage, per micro-batch unless stated otherwise.

    Attributes
    ----------
    forward, backward, input_gradient, weight_gradient : int or tuple of int
        Times of each token slice, where sequences are cut into slices: one number for all slices, or one per slice.
        Read by `duration`, `least` and `total`.
    update : int
        Time of the optimiser step, once per step.
    reduce : int
        Time of summing gradients, once per step: over replicas, and over stages that hold copies of the same weights.
        It counts from the moment when all of them have reached it. With ``buckets`` it is the part of that time that
        the last backward does not hide.
    resident : int
        Static bytes, for the whole step: parameters, gradients, optimiser state.
    held : int
        Activation bytes of a micro-batch from its forward on (saved tensors and the received input).
    held_after_input_gradient : int or None
        The part of ``held`` that is kept between input and weight gradient; None if all of it is.
    workspace : int
        Bytes allocated only while an action of this stage runs.
    forward_workspace : int or None
        The same for a forward, where a backward needs more because it recomputes layers; None if both are equal.
    gather : int
        Time for which the first forwards of a step wait at its begin, while replicas send each other the parameters
        that each of them has updated. With ``gather_buckets`` it is the part of it that those forwards do not hide.
    buckets : tuple of Bucket
        In the order in which they are summed. Without any, all gradients are summed behind the last backward.
    gather_buckets : tuple of Bucket
        In the opposite order of that in which they are gathered. Without any, all is gathered before the first forward.
    """

    forward: Times
    backward: Times
    input_gradient: Times = 0
    weight_gradient: Times = 0
    update: int = 0
    reduce: int = 0
    resident: int = 0
    held: int = 0
    held_after_input_gradient: int | None = None
    workspace: int = 0
    forward_workspace: int | None = None
    gather: int = 0
    buckets: tuple[Bucket, ...] = ()
    gather_buckets: tuple[Bucket, ...] = ()

    @property
    def slices(self) -> int:
        """Number of token slices with separate times; 1 where all take the same time."""
        own = (self.forward, self.backward, self.input_gradient, self.weight_gradient)
        return max([1, *(len(times) for times in own if isinstance(times, tuple))])

    def duration(self, kind: Kind, slice: int = 0) -> int:
        """Return the nanoseconds of an action."""
        times: Times = getattr(self, _FIELDS[kind])
        return times if isinstance(times, int) else times[slice]

    def least(self, kind: Kind) -> int:
        """Return the nanoseconds of the shortest action of a kind."""
        return min(self.duration(kind, part) for part in range(self.slices))

    def total(self, *kinds: Kind) -> int:
        """Return the nanoseconds of these kinds for one micro-batch, summed over all slices with separate times."""
        many = self.slices
        return sum(self.duration(kind, k) for kind in kinds for k in range(many if kind.per_micro_batch else 1))

    def with_durations(self, duration: Callable[[Kind, int], int]) -> "Stage":
        """Return the same stage with actions of ``duration(kind, slice)`` nanoseconds, without parts of them."""
        many = self.slices

        def times(kind: Kind) -> Times:
            return duration(kind, 0) if many == 1 else tuple(duration(kind, part) for part in range(many))

        return replace(
            self,
            forward=times(Kind.FORWARD),
            backward=times(Kind.BACKWARD),
            input_gradient=times(Kind.INPUT_GRADIENT),
            weight_gradient=times(Kind.WEIGHT_GRADIENT),
            reduce=duration(Kind.REDUCE, 0),
            update=duration(Kind.UPDATE, 0),
            gather=duration(Kind.GATHER, 0),
            buckets=(),
            gather_buckets=(),
        )

    @property
    def forward_lane_workspace(self) -> int:
        """Bytes that a forward needs while a backward runs on the other lane."""
        return self.workspace if self.forward_workspace is None else self.forward_workspace


@dataclass(frozen=True, slots=True)
class Transfer:
    """One tensor's transfer between the devices of two neighbouring stages.

    Each of ``resources`` is busy for ``occupancy`` nanoseconds. A resource is one direction of a link, or the network
    card of a node, which serves its transfers one after another. The tensor arrives ``latency`` nanoseconds later.
    """

    size: int = 0
    occupancy: int = 0
    latency: int = 0
    resources: tuple[str, ...] = ()


Placement = tuple[tuple[int, ...], ...]
"""The devices of each stage, one per replica; several stages may share devices."""

Hop = tuple[tuple[Transfer, ...], tuple[Transfer, ...]]
"""Transfers over a boundary, onward and back: micro-batch m takes entry m modulo their number."""


@dataclass(frozen=True)
class Pipeline:
    """Everything about a plan that the simulator needs, except the order of actions.

    Attributes
    ----------
    stages : tuple of Stage
    placement : tuple of tuple of int
        The devices (0 … devices − 1) of each stage, one per replica.
    transfers, returns : tuple of tuple of Transfer
        One tuple per boundary: activations forward, gradients back. Micro-batch m takes entry m mod length, and the
        length is the least common multiple of the replicas on both sides. A transfer inside one device costs nothing.
    overlap : Overlap
    runtime : tuple of int
        Bytes that the runtime takes, one number per device.
    limits : tuple of int
        Bytes that may be used, one number per device (`pipeplan.costs.chain.UNLIMITED` for no limit).
    tied : tuple of tuple of int
        Disjoint groups of stages that hold copies of the same weights: the reductions of a group are one collective.
    coupled : bool
        The replicas of a stage begin the passes of their micro-batches together: the first ones of all, the second
        ones, and so on, because they gather parameters or sum gradients in each.
    """

    stages: tuple[Stage, ...]
    placement: Placement
    transfers: tuple[tuple[Transfer, ...], ...]
    returns: tuple[tuple[Transfer, ...], ...]
    overlap: Overlap
    runtime: tuple[int, ...]
    limits: tuple[int, ...]
    tied: tuple[tuple[int, ...], ...] = ()
    coupled: bool = False

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.limits)

    @cached_property
    def replicas(self) -> tuple[int, ...]:
        """Number of replicas of each stage."""
        return tuple(len(devices) for devices in self.placement)

    @property
    def begins(self) -> tuple[int, ...]:
        """For each stage the nanoseconds of a step before which none of its actions begins."""
        return tuple(stage.gather for stage in self.stages)

    def without_gathers(self) -> "Pipeline":
        """Return the pipeline with all parameters in place when a step begins."""
        stages = tuple(replace(stage, gather=0, gather_buckets=()) for stage in self.stages)
        return replace(self, stages=stages) if any(self.begins) else self

    @cached_property
    def periods(self) -> tuple[int, ...]:
        """For each boundary, the number of micro-batches after which the pairs of devices repeat."""
        return tuple(lcm(a, b) for a, b in pairwise(self.replicas))

    @cached_property
    def stages_on(self) -> tuple[tuple[int, ...], ...]:
        """Stages of which each device has a replica."""
        found: list[list[int]] = [[] for _ in range(self.devices)]
        for stage, devices in enumerate(self.placement):
            for device in devices:
                found[device].append(stage)
        return tuple(map(tuple, found))

    def ending(self, stage: int) -> int:
        """Return the nanoseconds that follow a stage's last backward: its update, and R if the stage sums gradients.

        It sums them over its replicas, or with stages that hold the same weights.
        """
        own = self.stages[stage]
        sums = self.replicas[stage] > 1 or any(stage in group for group in self.tied)
        return own.update + (own.reduce if sums else 0)

    def device_of(self, stage: int, micro_batch: int) -> int:
        """Return the device on which a stage runs a micro-batch."""
        devices = self.placement[stage]
        return devices[micro_batch % len(devices)]
