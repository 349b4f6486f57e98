"""`Synchronization`: what replicas of a stage sum and gather, and what computation hides of it."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from pipeplan.core.cluster import DeviceKind, Overlap
from pipeplan.core.job import SHARDED, WHOLLY_SHARDED, Objective
from pipeplan.costs import collectives, folded
from pipeplan.costs.chain import Array
from pipeplan.costs.collectives import Collective
from pipeplan.costs.cost_tables import CostTables
from pipeplan.costs.sharded import Passes
from pipeplan.costs.table import Table


class Synchronization:
    """Nanoseconds of the collectives among the replicas of a stage, which a ring stands for, at a job's level of ZeRO.

    Attributes
    ----------
    sums : bool
        Whether sums of gradients, and gathers, at the ends of a step count. A bound of several ways may do without.
    """

    def __init__(self, tables: CostTables) -> None:
        self.tables, self.model, self.job, self.kept = tables, tables.model, tables.job, tables.kept
        self.sums = True

    @cached_property
    def unfolded(self) -> "Synchronization":
        """That of the layers of which super layers are made."""
        return Synchronization(self.tables.unfolded)

    def _speed(self, kind: DeviceKind) -> float:
        """Speed of a kind's computation beside collectives, relative to its speed alone; 0 if none runs beside it."""
        beside = self.job.overlap_reduction and self.tables.cluster.overlap is not Overlap.NONE
        return kind.speed_beside_collectives if beside else 0.0

    def _speed_at_ends(self, kind: DeviceKind) -> float:
        """The same beside the sums and gathers of levels 0 and 1, at the end and the begin of a step."""
        ends = self.job.objective is not Objective.BOTTLENECK and self.job.level < SHARDED
        return self._speed(kind) if ends else 0.0

    def hidden(self, kind: DeviceKind, times: Array) -> Array:
        """The part of such collectives that is left without what computation beside them loses; with a delay, all."""
        if self.job.staleness:
            return times
        return times - collectives.lost(times, self._speed_at_ends(kind))

    def passes(self, kind: DeviceKind, micro_batch: int, ring: Collective) -> Passes | None:
        """Forwards and backwards on one of the ring's replicas that wait for collectives; None below level 2."""
        if self.job.level < SHARDED:
            return None
        every, speed = self.job.level == WHOLLY_SHARDED, self._speed(kind) * ring.link.unit_overlap
        table, units, gathered = (
            self.tables.table(kind, micro_batch),
            self.kept.units(kind),
            self.kept.units(kind, every),
        )
        last = gathered.last * self.kept.returns(kind, table.backward)
        gather, again, reduce = (self._each(ring, sizes) for sizes in (gathered.first, last, units.first))
        base = ring.one_way.base + ring.link.unit_overhead
        return Passes(table.forward, table.backward, gather, again, reduce, every, speed, base)

    @property
    def _gathers(self) -> bool:
        """True if replicas gather parameters in the next step; the bottleneck has none: there the sum counts both."""
        return self.job.level > 0 and self.job.objective is not Objective.BOTTLENECK

    @property
    def _gathers_shares(self) -> bool:
        """Whether such gathers are those of level 1, at the begin of a step."""
        return self.sums and self._gathers and self.job.level == 1

    @staticmethod
    def _each(ring: Collective, sizes: Array) -> Array:
        """Nanoseconds of a gather, or of a sum of one share per replica, of each of these sizes by itself."""
        unit = collectives.all_reduce(ring.replicas, ring.link.in_units).one_way
        overhead = ring.link.unit_overhead if ring.replicas > 1 else 0
        return unit.times(sizes) + np.where(sizes > 0, unit.base + overhead, 0)

    def summing(self, ring: Collective) -> Collective:
        """The part of an all-reduce that sums gradients; the rest may come at the begin of a step, see `gather`."""
        return ring.one_way if self._gathers else ring

    def _sums(self, kind: DeviceKind, ring: Collective) -> Array:
        """Nanoseconds in which each layer's gradients are summed at the end of a step, without `reduce_base`."""
        times = self.summing(ring).times(self.kept.parameters(kind))
        return times if self.sums and self.job.level < SHARDED else np.zeros_like(times)

    def reduce(self, kind: DeviceKind, ring: Collective) -> Array:
        """Nanoseconds of the sum of each layer's gradients, without `reduce_base` and `lost`; shape (n,).

        Of super layers, where backwards hide some, the least that is left of them: see `folded.first_to_run`.
        """
        if not self.sums or self.model.folding is None or not self._speed_at_ends(kind):
            return self.hidden(kind, self._sums(kind, ring))
        return self.hidden(kind, self.summing(ring).times(self._first_to_run(kind)[0]))

    def _first_to_run(self, kind: DeviceKind) -> Array:
        """Bytes of parameters of the first layer of each run of super layers; shape (rounds, n)."""
        assert self.model.folding is not None
        return folded.first_to_run(self.model.folding, self.unfolded.kept.parameters(kind))

    def lost(self, kind: DeviceKind, ring: Collective) -> Array:
        """Nanoseconds of a step that computation loses beside each layer's sum and gather; shape (n,).

        With a step of delay that is all of their time where nothing runs beside collectives.
        """
        speed = self._speed_at_ends(kind)
        if not (self.job.staleness or 0 < speed < 1):
            return np.zeros_like(self.kept.parameters(kind))
        if self.model.folding is not None:  # rounded down for each layer
            return folded.total(self.model.folding, self.unfolded.lost(kind, ring))
        gather = self.gather(ring, self.kept.parameters(kind))
        sums = self._sums(kind, ring)
        if self.job.staleness and not speed:
            return sums + gather
        return collectives.lost(sums, speed) + collectives.lost(gather, speed)

    def reduce_base(self, ring: Collective) -> int:
        """Nanoseconds of such a sum that do not depend on bytes."""
        return self.summing(ring).base if self.sums and self.job.level < SHARDED else 0

    def gather(self, ring: Collective, sizes: Array) -> Array:
        """Nanoseconds in which replicas send each other so many updated bytes, without `gather_base`."""
        return ring.one_way.times(sizes) if self._gathers_shares else np.zeros_like(sizes)

    def first_gathers(self, kind: DeviceKind, micro_batch: int, ring: Collective) -> tuple[Array, Array]:
        """Nanoseconds of each layer's gather at the begin of a step, and of what hides other gathers: each (n,).

        The former is without `gather_base` and `lost`. At level 2 the first forward gathers one unit ahead. What is
        exposed of that is hidden by nothing else.
        """
        table, parameters = self.tables.table(kind, micro_batch), self.kept.parameters(kind)
        forward = table.first_forward if self.model.slices > 1 else table.forward
        nothing = np.zeros_like(parameters)
        speed = self._speed(kind)
        if self.job.level != SHARDED:
            if self.model.folding is not None and speed:
                parameters = self._first_to_run(kind).sum(axis=0)
            gather = self.hidden(kind, self.gather(ring, parameters))
            hides = speed and gather.any() and not self.job.staleness
            return gather, forward if hides else nothing
        passes = self.passes(kind, micro_batch, ring)
        assert passes is not None
        return passes.waits, nothing

    def gather_base(self, ring: Collective) -> int:
        """Nanoseconds of a gather that do not depend on bytes."""
        return ring.one_way.base if self._gathers_shares else 0

    def update(self, table: Table, replicas: int) -> Array:
        """Nanoseconds of each layer's optimiser step on one of so many replicas; shape (n,)."""
        return -(-table.update // self.kept.shares(replicas))

    def least_gathers(self, kind: DeviceKind, micro_batch: int, among: Sequence[Collective]) -> tuple[Array, Array]:
        """The least of `first_gathers` over some rings."""
        gathers, hides = zip(*(self.first_gathers(kind, micro_batch, ring) for ring in among), strict=True)
        return np.minimum.reduce(gathers), np.maximum.reduce(hides)

    def least_reduce(self, kind: DeviceKind, among: Sequence[Collective]) -> Array:
        """The least of `reduce` over some rings; shape (n,)."""
        least: Array = np.minimum.reduce([self.reduce(kind, ring) for ring in among])
        return least

    def least_sums(self, kind: DeviceKind, among: Sequence[Collective]) -> Array:
        """The least over some rings of the sums of all runs of each super layer, but of shared weights; shape (n,)."""
        assert self.model.folding is not None and self.model.unfolded is not None
        sums = self.unfolded.least_reduce(kind, among) * self.sums
        tied = {name for tie in self.model.unfolded.ties for name in tie.layers}
        alone = np.array([name not in tied for name in self.model.unfolded.names])
        return folded.total(self.model.folding, sums * alone)

    def least_update(self, kind: DeviceKind, micro_batch: int, among: Sequence[Collective]) -> Array:
        """The least of `update` and `lost` together over some rings; shape (n,)."""
        table = self.tables.table(kind, micro_batch)
        least: Array = np.minimum.reduce([self.update(table, ring.replicas) + self.lost(kind, ring) for ring in among])
        return least

    def hides(self, kind: DeviceKind, micro_batch: int, splits: bool = False) -> Array:
        """Nanoseconds of each layer's last backward beside which gradients may be summed; shape (n,).

        ``splits``: that backward is split, as in `Chain.in_halves`.
        """
        job, table = self.job, self.tables.table(kind, micro_batch)
        if not self._speed_at_ends(kind) or job.staleness:
            return np.zeros_like(table.backward)
        if splits:
            return table.weight_gradient
        if "any" in job.schedules and table.weight_gradient.any():  # of a split backward the weight gradient is last
            return np.minimum(table.backward, table.weight_gradient)
        return table.first_backward if self.model.slices > 1 else table.backward

    def overlaps(self, kind: DeviceKind, micro_batch: int) -> bool:
        """Return True if gradients on a kind of device may be summed while the last backward runs."""
        return bool(self.job.overlap_reduction and self.hides(kind, micro_batch).any())
