"""Cost tables of a model's layers on device groups."""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.cluster import Cluster, Device, DeviceKind, StageDevices
from pipeplan.core.job import Job, Recompute
from pipeplan.core.model import Model
from pipeplan.costs.chain import EITHER, FIRST, UNLIMITED, Array, Chain, SharedWeights
from pipeplan.costs.collectives import Collective
from pipeplan.costs.cost_tables import CostTables
from pipeplan.costs.network import busiest, least_together, links_between, rings
from pipeplan.costs.occupancy import occupancies
from pipeplan.costs.synchronization import Synchronization
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


class Prices(CostTables):
    """What a model's layers cost on a cluster's device groups."""

    @cached_property
    def sync(self) -> Synchronization:
        """What replicas of a stage sum and gather."""
        return Synchronization(self)

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
                self.sync.hidden(kind, self.sync.summing(ring).times(_array([whole, max(whole - size, 0)])))
                for kind, _, ring, whole in own
            ]
            reduced = [int(with_them - without) for with_them, without in sums]
            gather = np.concatenate([self.sync.gather(ring, _array([size])) for ring in rings])
            base = _array([self.sync.gather_base(ring) if size else 0 for ring in rings])
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

    @cached_property
    def recomputable(self) -> NDArray[np.bool_]:
        """Layers that the search may recompute."""
        return np.full(len(self.model.layers), self.job.recompute is Recompute.CHOOSE)

    def chain(self, groups: StageDevices, micro_batch: int) -> Chain:
        """Return the costs of the model's layers on the stages' device groups."""
        sync, kinds = self.sync, [group[0].kind for group in groups]
        per_cut = len(groups) - 1, len(self.model.layers) - 1
        crossing = [self.crossing(a, b, micro_batch) for a, b in pairwise(kinds)]
        boundary = np.array([each.sent for each in crossing], np.int64).reshape(per_cut)  # bytes [link, cut]
        links = [links_between(self.cluster, a, b) for a, b in pairwise(groups)]
        send = [  # nanoseconds [link, cut], the least over pairs of replicas
            np.minimum.reduce([occupancies(link, sizes) for link in each])
            for each, sizes in zip(links, boundary, strict=True)
        ]
        around = rings(self.cluster, groups)
        own, of_stage = _distinct(kinds, around)
        tables = [self.table(kind, micro_batch) for kind, _ in own]
        gathers = [sync.first_gathers(kind, micro_batch, ring) for kind, ring in own]
        passes = [sync.passes(kind, micro_batch, ring) for kind, ring in own]
        times = [
            (table.forward, table.backward) if each is None else each.least if len(groups) > 1 else each.whole
            for table, each in zip(tables, passes, strict=True)
        ]

        def by_stage(rows: Sequence[Array]) -> Array:
            return np.array(rows)[of_stage]

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
            update=by_stage([sync.update(table, ring.replicas) for table, (_, ring) in zip(tables, own, strict=True)]),
            gather=by_stage([gather for gather, _ in gathers]),
            gather_hides=by_stage([hides for _, hides in gathers]),
            gather_base=_array([sync.gather_base(ring) for ring in around]),
            parameters=self.kept.parameters(kinds[0]),
            weights=by_stage([self.kept.weights(kind, ring.replicas) for kind, ring in own]),
            gradients=by_stage([self.kept.gradients(kind, ring.replicas) for kind, ring in own]),
            optimizer=by_stage([self.kept.state(kind, ring.replicas) for kind, ring in own]),
            frozen=by_stage([self.kept.frozen_kept(kind, ring.replicas) for kind, ring in own]),
            reduce=by_stage([sync.reduce(kind, ring) for kind, ring in own]),
            lost=by_stage([sync.lost(kind, ring) for kind, ring in own]),
            reduce_base=_array([sync.reduce_base(ring) for ring in around]),
            hides=by_stage([sync.hides(kind, micro_batch) for kind, _ in own]),
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
