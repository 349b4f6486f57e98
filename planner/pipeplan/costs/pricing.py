"""Cost tables of a model's layers on device groups."""

from collections.abc import Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.cluster import Cluster, Device, DeviceKind, Link, Overlap, StageDevices
from pipeplan.core.errors import InputError
from pipeplan.core.folding import Folding
from pipeplan.core.job import SHARDED, WHOLLY_SHARDED, Job, Objective, Recompute
from pipeplan.core.model import Model
from pipeplan.core.splits import Splitting
from pipeplan.costs import collectives, folded
from pipeplan.costs.chain import EITHER, FIRST, UNLIMITED, Array, Chain, SharedWeights
from pipeplan.costs.collectives import Collective
from pipeplan.costs.kept import Kept
from pipeplan.costs.layers import item_size, layer_costs
from pipeplan.costs.network import busiest, least_together, links_between, rings
from pipeplan.costs.scale import require_exact
from pipeplan.costs.sharded import Passes
from pipeplan.costs.slices import SliceCosts, slice_costs
from pipeplan.costs.table import Table


def price(
    model: Model, cluster: Cluster, devices: Sequence[Device | tuple[Device, ...]], micro_batch: int, job: Job
) -> Chain:
    """Return the costs of the model's layers on ``devices``: stage s on entry s, a device or a group of replicas.

    Raises
    ------
    InputError
        If the model has no costs for one of the devices at this micro-batch size.
    """
    groups = tuple(entry if isinstance(entry, tuple) else (entry,) for entry in devices)
    return Prices(model, cluster, job).chain(groups, micro_batch)


Tables = dict[tuple[Folding | None, str, int], Table]
"""By how layers are folded, kind of device and micro-batch size."""


class Crossing(NamedTuple):
    """Bytes over each cut between two kinds of device, shape (n − 1,).

    Attributes
    ----------
    sent : array
        That a transfer carries, in either direction.
    received : array
        That the device behind the cut keeps.
    """

    sent: Array
    received: Array


class Prices:
    """Cache of a model's costs on a cluster's kinds of device.

    ``tables``: those that are known, shared with prices of the model, or folded, at other levels of ZeRO.

    Attributes
    ----------
    sums : bool
        Whether sums of gradients, and gathers, at the ends of a step count. A bound of several ways may do without.

    Raises
    ------
    InputError
        If the model has no costs for a requested table.
    """

    def __init__(
        self, model: Model, cluster: Cluster, job: Job, split: Splitting | None = None, tables: Tables | None = None
    ) -> None:
        self.model, self.cluster, self.job, self.split = model, cluster, job.of(model), split
        self.sums = True
        self._tables: Tables = {} if tables is None else tables
        self.kept = Kept(model, self.job)

    def table(self, kind: DeviceKind, micro_batch: int) -> Table:
        """Return every layer's cost on a kind of device at a micro-batch size."""
        key = self.model.folding, kind.name, micro_batch
        if key not in self._tables:
            try:
                table = Table(
                    self.model,
                    *self.costs(kind, micro_batch),
                    again=self.job.recompute is Recompute.FULL,
                    keys=self._keys(kind, micro_batch),
                    lengths={n: self._costs(own, kind, micro_batch) for n, own in self.model.of_length.items()},
                )
            except OverflowError as error:
                raise InputError(
                    f"{self.model.name} on {kind.name}: a micro-batch of {micro_batch} samples costs more than 64 bits "
                    "of nanoseconds or bytes; make it smaller, or check speeds and sizes"
                ) from error
            require_exact(table, self.model, self.cluster, self.job, f"{self.model.name} on {kind.name}", micro_batch)
            self._tables[key] = table
        return self._tables[key]

    def costs(self, kind: DeviceKind, micro_batch: int) -> SliceCosts:
        """Return every layer's costs before what is recomputed or kept beside them, of a slice of average work."""
        return self._costs(self.model, kind, micro_batch)

    def _costs(self, model: Model, kind: DeviceKind, micro_batch: int) -> SliceCosts:
        job = self.job
        given = partial(
            layer_costs,
            kind=kind,
            micro_batch=micro_batch,
            extrapolate=job.extrapolate,
            optimizer=job.optimizer,
            state_bytes=job.state_bytes,
        )
        if model.slicing is not None:
            return slice_costs(model, kind, micro_batch, given)
        return SliceCosts(given(model.unfolded or model), ())

    def _keys(self, kind: DeviceKind, micro_batch: int) -> tuple[tuple[int, int], ...]:
        """Bytes of keys and values of each layer's attention, and of their gradients, of a slice of a micro-batch."""
        slicing, size = self.model.slicing, item_size(self.model.dtype)
        if slicing is None:
            return ()
        split = None if self.split is None else self.split.at(kind.team)
        rows = (None,) * len(slicing.layers) if split is None else split.strategies[kind.name, micro_batch]
        sizes = () if split is None else split.sizes
        kept = [micro_batch * own.kept(row, sizes) for own, row in zip(slicing.layers, rows, strict=True)]
        return tuple((own, own // size * max(size, 4)) for own in kept)

    def occupancy(self, link: Link, sizes: Array) -> Array:
        """Return the nanoseconds for which each of these numbers of bytes keeps a link busy."""
        of_size = {size: link.occupancy(size) for size in set(sizes.tolist())}
        return _array([of_size[size] for size in sizes.tolist()])

    def crossing(self, source: DeviceKind, target: DeviceKind, micro_batch: int) -> Crossing:
        """Bytes over each cut from one kind of device to another.

        Both have what the kind before the cut has. Teams of unlike sizes have parts of unlike sizes, where tensors are
        split: the smaller ones are sent.
        """
        before, behind = (self.table(kind, micro_batch).boundary for kind in (source, target))
        if source.team == target.team:
            return Crossing(before, before)
        return Crossing(np.minimum(before, behind), behind)

    def shared(
        self, groups: StageDevices, tables: Sequence[Table], rings: Sequence[Collective]
    ) -> tuple[SharedWeights, ...]:
        """Return the costs of the model's ties on the stages.

        Of super layers the first layer's own update and sum are not known: no update, and nothing left of its sum, is
        what all plans have.
        """
        shares = _array([self.kept.shares(ring.replicas) for ring in rings])
        index = {name: i for i, name in enumerate(self.model.names)}
        found = []
        for tie in self.model.ties:
            layers = tuple(index[name] for name in tie.layers)
            first, size = layers[0], tie.parameters
            wholes = [max(int(self.kept.parameters(group[0].kind)[first]), 1) for group in groups]
            state = self.kept.state_of(size)
            own = list(zip((group[0].kind for group in groups), tables, rings, wholes, strict=True))
            updates = _array([int(table.update[first]) * size // whole for _, table, _, whole in own])
            sums = [
                self._hidden(kind, self.summing(ring).times(_array([whole, max(whole - size, 0)])))
                for kind, _, ring, whole in own
            ]
            reduced = [int(with_them - without) for with_them, without in sums]
            gather = np.concatenate([self.gather(ring, _array([size])) for ring in rings])
            base = _array([self.gather_base(ring) if size else 0 for ring in rings])
            together = least_together(self.cluster, groups, size, ends=(0, len(index) - 1) == (first, layers[-1]))
            if self.model.folding is not None:
                updates, reduced = 0 * updates, together.tolist()
            found.append(
                SharedWeights(
                    layers=layers,
                    parameters=size,
                    frozen=tie.frozen,
                    gradients=self.kept.gradients_of(size),
                    versions=self.kept.versions,
                    optimizer=-(-state // shares),
                    update=-(-updates // shares),
                    gather=gather + base,
                    reduced=np.maximum(_array(reduced), 0),
                    together=together,
                )
            )
        return tuple(found)

    def _speed(self, kind: DeviceKind) -> float:
        """Speed of a kind's computation beside collectives, relative to its speed alone; 0 if none runs beside it."""
        beside = self.job.overlap_reduction and self.cluster.overlap is not Overlap.NONE
        return kind.speed_beside_collectives if beside else 0.0

    def _speed_at_ends(self, kind: DeviceKind) -> float:
        """The same beside the sums and gathers of levels 0 and 1, at the end and the begin of a step."""
        ends = self.job.objective is not Objective.BOTTLENECK and self.job.level < SHARDED
        return self._speed(kind) if ends else 0.0

    def _hidden(self, kind: DeviceKind, times: Array) -> Array:
        """The part of such collectives that is left without what computation beside them loses; with a delay, all."""
        if self.job.staleness:
            return times
        return times - collectives.lost(times, self._speed_at_ends(kind))

    def passes(self, kind: DeviceKind, micro_batch: int, ring: Collective) -> Passes | None:
        """Forwards and backwards on one of the ring's replicas that wait for collectives; None below level 2."""
        if self.job.level < SHARDED:
            return None
        every, speed = self.job.level == WHOLLY_SHARDED, self._speed(kind) * ring.link.unit_overlap
        table, units, gathered = self.table(kind, micro_batch), self.kept.units(kind), self.kept.units(kind, every)
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
            return self._hidden(kind, self._sums(kind, ring))
        return self._hidden(kind, self.summing(ring).times(self._first_to_run(kind)[0]))

    def _first_to_run(self, kind: DeviceKind) -> Array:
        """Bytes of parameters of the first layer of each run of super layers; shape (rounds, n)."""
        assert self.model.folding is not None
        return folded.first_to_run(self.model.folding, self.unfolded.kept.parameters(kind))

    @cached_property
    def unfolded(self) -> "Prices":
        """Those of the layers of which super layers are made."""
        assert self.model.unfolded is not None
        return Prices(self.model.unfolded, self.cluster, self.job, self.split, self._tables)

    def lost(self, kind: DeviceKind, ring: Collective) -> Array:
        """Nanoseconds of a step that computation loses beside each layer's sum and gather; shape (n,).

        With a step of delay that is all of their time where nothing runs beside collectives.
        """
        if self.model.folding is not None:  # rounded down for each layer
            return folded.total(self.model.folding, self.unfolded.lost(kind, ring))
        speed, gather = self._speed_at_ends(kind), self.gather(ring, self.kept.parameters(kind))
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
        table, parameters = self.table(kind, micro_batch), self.kept.parameters(kind)
        forward = table.first_forward if self.model.slices > 1 else table.forward
        nothing = np.zeros_like(parameters)
        speed = self._speed(kind)
        if self.job.level != SHARDED:
            if self.model.folding is not None and speed:
                parameters = self._first_to_run(kind).sum(axis=0)
            gather = self._hidden(kind, self.gather(ring, parameters))
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
        table = self.table(kind, micro_batch)
        least: Array = np.minimum.reduce([self.update(table, ring.replicas) + self.lost(kind, ring) for ring in among])
        return least

    def hides(self, kind: DeviceKind, micro_batch: int, splits: bool = False) -> Array:
        """Nanoseconds of each layer's last backward beside which gradients may be summed; shape (n,).

        ``splits``: that backward is split, as in `Chain.in_halves`.
        """
        job, table = self.job, self.table(kind, micro_batch)
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

    @cached_property
    def recomputable(self) -> NDArray[np.bool_]:
        """Layers that the search may recompute."""
        return np.full(len(self.model.layers), self.job.recompute is Recompute.CHOOSE)

    def chain(self, groups: StageDevices, micro_batch: int) -> Chain:
        """Return the costs of the model's layers on the stages' device groups."""
        kinds = [group[0].kind for group in groups]
        per_cut = len(groups) - 1, len(self.model.layers) - 1
        crossing = [self.crossing(a, b, micro_batch) for a, b in pairwise(kinds)]
        boundary = np.array([each.sent for each in crossing], np.int64).reshape(per_cut)  # bytes [link, cut]
        links = [links_between(self.cluster, a, b) for a, b in pairwise(groups)]
        send = [  # nanoseconds [link, cut], the least over pairs of replicas
            np.minimum.reduce([self.occupancy(link, sizes) for link in each])
            for each, sizes in zip(links, boundary, strict=True)
        ]
        around = rings(self.cluster, groups)
        own, of_stage = _distinct(kinds, around)
        tables = [self.table(kind, micro_batch) for kind, _ in own]
        gathers = [self.first_gathers(kind, micro_batch, ring) for kind, ring in own]
        passes = [self.passes(kind, micro_batch, ring) for kind, ring in own]
        times = [
            (table.forward, table.backward) if each is None else each.least if len(groups) > 1 else each.whole
            for table, each in zip(tables, passes, strict=True)
        ]

        def by_stage(rows: Sequence[Array]) -> Array:
            return np.stack(rows)[of_stage]

        workspace, rebuilt = (
            by_stage(
                [
                    self.kept.with_buffers(kind, row, table.backward, ring.replicas)
                    for row, table, (kind, ring) in zip(each, tables, own, strict=True)
                ]
            )
            for each in ([each.workspace for each in tables], [each.workspace + each.saved for each in tables])
        )
        work = [layer.work.forward_flops * micro_batch for layer in self.model.layers if layer.work is not None]

        slices = [table.slices for table in tables if table.slices is not None]

        def rows(name: str) -> Array:
            return by_stage([getattr(table, name) for table in tables])

        return Chain(
            names=self.model.names,
            groups=groups,
            micro_batch=micro_batch,
            forward=by_stage([forward for forward, _ in times]),
            backward=by_stage([backward for _, backward in times]),
            **{name: rows(name) for name in (*EITHER, *FIRST)},
            unlike_slices=tuple(slices[number] for number in of_stage) if slices else None,
            slices=self.model.slices,
            rounds=self.model.rounds,
            turns=self.model.folding is not None and self.model.folding.laid.turns,
            halves=False,
            input_gradient=rows("input_gradient"),
            weight_gradient=rows("weight_gradient"),
            parts=rows("parts"),
            whole=rows("whole"),
            update=by_stage([self.update(table, ring.replicas) for table, (_, ring) in zip(tables, own, strict=True)]),
            gather=by_stage([gather for gather, _ in gathers]),
            gather_hides=by_stage([hides for _, hides in gathers]),
            gather_base=_array([self.gather_base(ring) for ring in around]),
            parameters=self.kept.parameters(kinds[0]),
            weights=by_stage([self.kept.weights(kind, ring.replicas) for kind, ring in own]),
            gradients=by_stage([self.kept.gradients(kind, ring.replicas) for kind, ring in own]),
            optimizer=by_stage([self.kept.state(kind, ring.replicas) for kind, ring in own]),
            frozen=by_stage([self.kept.frozen_kept(kind, ring.replicas) for kind, ring in own]),
            reduce=by_stage([self.reduce(kind, ring) for kind, ring in own]),
            lost=by_stage([self.lost(kind, ring) for kind, ring in own]),
            reduce_base=_array([self.reduce_base(ring) for ring in around]),
            hides=by_stage([self.hides(kind, micro_batch) for kind, _ in own]),
            saved=rows("saved"),
            output=rows("output"),
            workspace=workspace,
            rebuilt=rebuilt,
            forward_workspace=rows("forward_workspace"),
            recomputable=self.recomputable,
            boundary=boundary,
            received=np.array([each.received for each in crossing], np.int64).reshape(per_cut),
            send=np.array(send, np.int64).reshape(per_cut),
            latency=_array([min(link.latency for link in own) for own in links]),
            busiest=tuple(busiest(a, b) for a, b in pairwise(groups)),
            limit=_array([device_limit(kind, self.job) for kind in kinds]),
            runtime=_array([kind.runtime for kind in kinds]),
            overlap=self.cluster.overlap,
            forward_flops=_array(work) if len(work) == len(self.model.layers) else rows("forward")[0],
            zero=self.job.level,
            staleness=self.job.staleness,
            split=self.split,
            passes=tuple(passes[number] for number in of_stage),
            shared=self.shared(groups, [tables[number] for number in of_stage], around),
            blocks=self.model.blocks,
        )


def _distinct(
    kinds: Sequence[DeviceKind], rings: Sequence[Collective]
) -> tuple[list[tuple[DeviceKind, Collective]], list[int]]:
    """Return the kinds with rings that differ, and for each stage which of them it has: their rows are made once."""
    known: dict[tuple[int, Collective], int] = {}
    numbers = [known.setdefault((id(kind), ring), len(known)) for kind, ring in zip(kinds, rings, strict=True)]
    kind_of = {id(kind): kind for kind in kinds}
    return [(kind_of[kind], ring) for kind, ring in known], numbers


def usable_memory(kind: DeviceKind, job: Job) -> int:
    """Return the bytes of a device of the kind that a plan may use, without its runtime; `UNLIMITED` by default."""
    limit = device_limit(kind, job)
    return limit if limit == UNLIMITED else max(limit - kind.runtime, 0)


def device_limit(kind: DeviceKind, job: Job) -> int:
    """Return the bytes that a device of the kind may use, its runtime included; `UNLIMITED` by default."""
    limits = [limit for limit in (job.usable(kind.memory), job.memory) if limit is not None]
    return min(limits, default=UNLIMITED)


def _array(values: list[int]) -> Array:
    return np.array(values, dtype=np.int64)
