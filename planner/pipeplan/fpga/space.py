"""Lines of devices in the searched space, and checks of jobs that divide layers."""

from collections.abc import Iterator

import numpy as np

from pipeplan.baselines.planners.orders import device_orders
from pipeplan.core.cluster import Cluster, Device, DeviceKind, Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job, Objective, Order, Recompute
from pipeplan.core.model import Model
from pipeplan.costs.chain import Array, Chain
from pipeplan.costs.layers import available_micro_batches, layer_costs
from pipeplan.costs.pricing import Prices
from pipeplan.fpga.line import Line
from pipeplan.schedules import FAMILIES, family


def require_streams(model: Model, cluster: Cluster, job: Job) -> None:
    """Refuse to divide layers where devices send complete tensors, or with shared weights or constraints on layers.

    Raises
    ------
    InputError
    """
    if cluster.overlap is not Overlap.STREAM:
        raise InputError(
            f"layers are divided only between devices whose tensors leave while they are made, and the devices of "
            f"{cluster.name!r} send complete ones; leave --intra-layer out, or set overlap: stream in the cluster"
        )
    if model.ties:
        named = ", ".join(" and ".join(tie.layers) for tie in model.ties)
        raise InputError(f"divided layers do not go with shared weights yet ({named}); leave --intra-layer out")
    for name in job.schedules:
        family(name)  # refuses unknown families, and any order, before the search
    unsupported = [name for name in ("together", "no_cut_after", "pin") if getattr(job, name)]
    unsupported += ["recompute: full"] if job.recompute is Recompute.FULL else []
    unsupported += ["objective: period"] if job.objective is Objective.PERIOD else []
    if unsupported:
        raise InputError(f"divided layers do not go with {', '.join(unsupported)} yet; leave one or the other out")


def lines(model: Model, cluster: Cluster, job: Job) -> list[Line]:
    """Return the lines of all micro-batch sizes, device orders, depths and streaming families that the job allows."""
    kinds = list({device.kind.name: device.kind for device in cluster.devices}.values())
    sizes = tuple(job.batch // count for count in job.micro_batches)
    sizes = sizes or available_micro_batches(model, kinds, job.batch, extrapolate=job.extrapolate)
    families = [family(name) for name in job.schedules] or list(FAMILIES.own.values())
    families = [each for each in families if cluster.overlap in each.suits]
    prices = Prices(model, cluster, job)
    found = []
    for size in sizes:
        on_chip = {kind.name: times_on_chip(model, kind, size, extrapolate=job.extrapolate) for kind in kinds}
        for row in _rows(cluster, job):
            chain = prices.chain(tuple((device,) for device in row), size)
            if not alike(chain):
                continue
            forward, backward = (np.stack(rows) for rows in zip(*(on_chip[d.kind.name] for d in row), strict=True))
            found += [
                Line(cluster, chain, (forward, backward), job.batch // size, each, job.objective)
                for each in families[: None if len(row) > 1 else 1]
            ]
    return found


def times_on_chip(model: Model, kind: DeviceKind, micro_batch: int, *, extrapolate: bool = False) -> list[Array]:
    """Return each layer's forward and backward times with weights on chip, in nanoseconds.

    They are those of streamed weights on a kind that is profiled or has no on-chip memory. Gradients are on chip too,
    as every micro-batch adds to them; whether BaPipe counts them is not known to us.
    """
    costs = layer_costs(model, kind, micro_batch, extrapolate=extrapolate, weights_on_chip=True)
    return [np.array([getattr(cost, name) for cost in costs], np.int64) for name in ("forward", "backward")]


def alike(chain: Chain) -> bool:
    """Return True if each layer has equally many bytes on all devices: a divided layer lies on two of them."""
    tables = (chain.saved, chain.output, chain.workspace, chain.boundary)
    return all((table == table[:1]).all() for table in tables)


def satisfies(line: Line, job: Job) -> bool:
    """Return True if a line without its empty stages still satisfies the job."""
    taken = [device.index for device in line.chain.devices]
    in_order = job.order is not Order.GIVEN or taken == list(range(len(taken)))
    return in_order and (not job.depths or len(taken) in job.depths)


def _rows(cluster: Cluster, job: Job) -> Iterator[tuple[Device, ...]]:
    """Yield every depth of every device order, once per sequence of kinds and nodes."""
    orders = [cluster.devices] if job.order is Order.GIVEN else device_orders(cluster)
    most = len(cluster.devices)
    seen = set()
    for depth in [d for d in job.depths or range(1, most + 1) if d <= most]:
        for order in orders:
            key = tuple((device.kind.name, device.node) for device in order[:depth])
            if key not in seen:
                seen.add(key)
                yield order[:depth]
