"""From the questions to numbers: a model's layers priced on a row of devices, and a partition of them as a pipeline."""

from itertools import accumulate, pairwise

import numpy as np

from pipeplan.chain import UNLIMITED, Array, Boundaries, Chain
from pipeplan.cluster import Cluster, Device
from pipeplan.cost import layer_costs
from pipeplan.job import Job
from pipeplan.memory import optimizer_bytes
from pipeplan.model import Layer, LayerCost, Model
from pipeplan.network import transfer
from pipeplan.pipeline import Pipeline, Stage


def price(model: Model, cluster: Cluster, devices: tuple[Device, ...], micro_batch: int, job: Job) -> Chain:
    """The model's layers on ``devices``, stage s on the s-th of them.

    Raises
    ------
    InputError
        If the model has no costs for one of the devices at this micro-batch size.
    """
    by_kind = {
        device.kind.name: layer_costs(
            model, device.kind, micro_batch, extrapolate=job.extrapolate, optimizer=job.optimizer
        )
        for device in devices
    }
    rows = [by_kind[device.kind.name] for device in devices]
    boundary = crossing_bytes(model.layers, rows[0])
    links = [cluster.link(a, b) for a, b in pairwise(devices)]
    parameters = _array([layer.parameters for layer in model.layers])
    flops = [layer.work.forward_flops * micro_batch for layer in model.layers if layer.work is not None]
    limits = [_limit(device, job) for device in devices]
    return Chain(
        names=model.names,
        devices=devices,
        micro_batch=micro_batch,
        forward=_table(rows, "forward"),
        backward=_table(rows, "backward"),
        input_gradient=_table(rows, "input_gradient"),
        weight_gradient=_table(rows, "weight_gradient"),
        update=_table(rows, "update"),
        parameters=parameters,
        gradients=parameters,
        optimizer=_array([optimizer_bytes(layer.parameters, model.dtype, job.optimizer) for layer in model.layers]),
        saved=_table(rows, "saved").max(axis=0),
        workspace=_table(rows, "workspace").max(axis=0),
        boundary=boundary,
        send=_array([[link.occupancy(int(size)) for size in boundary] for link in links], (len(links), len(boundary))),
        latency=_array([link.latency for link in links]),
        limit=_array(limits),
        runtime=_array([device.kind.runtime for device in devices]),
        overlap=cluster.overlap,
        forward_flops=_array(flops) if len(flops) == len(model.layers) else _table(rows, "forward")[0],
    )


def crossing_bytes(layers: tuple[Layer, ...], costs: tuple[LayerCost, ...]) -> Array:
    """Bytes over each cut: the output of every layer before it that some layer behind it reads, each counted once."""
    index = {layer.name: i for i, layer in enumerate(layers)}
    last_reader = list(range(len(layers)))
    for i, layer in enumerate(layers):
        for source in layer.inputs:
            last_reader[index[source]] = i
    change = [0] * (len(layers) + 1)
    for i, reader in enumerate(last_reader):
        change[i] += costs[i].output if reader > i else 0
        change[reader] -= costs[i].output if reader > i else 0
    return _array(list(accumulate(change))[: len(layers) - 1])


def assemble(chain: Chain, cluster: Cluster, boundaries: Boundaries) -> Pipeline:
    """The pipeline that a partition of the chain makes. Empty stages are left out, and their devices with them."""
    spans = [(s, a, b) for s, (a, b) in enumerate(pairwise(boundaries)) if a < b]
    devices = [chain.devices[s] for s, _, _ in spans]
    cuts = [b - 1 for _, _, b in spans[:-1]]
    hops = list(zip(pairwise(devices), cuts, strict=True))
    return Pipeline(
        stages=tuple(_stage(chain, s, a, b) for s, a, b in spans),
        placement=tuple((device,) for device in range(len(spans))),
        transfers=tuple((transfer(cluster, a, b, int(chain.boundary[c])),) for (a, b), c in hops),
        returns=tuple((transfer(cluster, b, a, int(chain.boundary[c])),) for (a, b), c in hops),
        overlap=chain.overlap,
        runtime=tuple(int(chain.runtime[s]) for s, _, _ in spans),
        limits=tuple(int(chain.limit[s]) for s, _, _ in spans),
    )


def _stage(chain: Chain, s: int, a: int, b: int) -> Stage:
    received = int(chain.boundary[a - 1]) if a else 0
    return Stage(
        forward=int(chain.forward[s, a:b].sum()),
        backward=int(chain.backward[s, a:b].sum()),
        input_gradient=int(chain.input_gradient[s, a:b].sum()),
        weight_gradient=int(chain.weight_gradient[s, a:b].sum()),
        update=int(chain.update[s, a:b].sum()),
        resident=int(chain.resident[a:b].sum()),
        held=int(chain.saved[a:b].sum()) + received,
        workspace=int(chain.workspace[a:b].max()),
    )


def _limit(device: Device, job: Job) -> int:
    limits = [limit for limit in (device.kind.memory, job.memory) if limit is not None]
    return min(limits, default=UNLIMITED)


def _table(rows: list[tuple[LayerCost, ...]], field: str) -> Array:
    return _array([[getattr(cost, field) for cost in row] for row in rows])


def _array(values: list[int] | list[list[int]], shape: tuple[int, ...] | None = None) -> Array:
    array = np.array(values, dtype=np.int64)
    return array if shape is None else array.reshape(shape)
