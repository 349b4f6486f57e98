"""Memory limits that no plan can reach: then more memory brings nothing, and nothing has to be solved to know it."""

from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.costs.chain import UNLIMITED
from pipeplan.costs.layers import available_micro_batches, layer_costs
from pipeplan.costs.memory import optimizer_bytes


def ample(model: Model, cluster: Cluster, job: Job) -> bool:
    """Whether every device could hold the whole model with all micro-batches of a step in flight.

    No stage of any plan needs more: it holds some of the layers, receives at most all outputs, recomputes one layer
    at a time, and runs at most two actions at once.
    """
    kinds = list({device.kind.name: device.kind for device in cluster.devices}.values())
    resident = sum(
        2 * layer.parameters + optimizer_bytes(layer.parameters, model.dtype, job.optimizer) for layer in model.layers
    )
    counts = {size: job.batch // size for size in _sizes(model, cluster, job)}
    for kind in kinds:
        limit = min(kind.memory or UNLIMITED, job.memory or UNLIMITED)
        for size, count in counts.items():
            costs = layer_costs(model, kind, size, extrapolate=job.extrapolate, optimizer=job.optimizer)
            held = count * sum(cost.saved + cost.output for cost in costs)
            workspace = 2 * max(cost.saved + cost.workspace for cost in costs)
            if kind.runtime + resident + held + workspace > limit:
                return False
    return True


def _sizes(model: Model, cluster: Cluster, job: Job) -> tuple[int, ...]:
    if job.micro_batches:
        return tuple(job.batch // count for count in job.micro_batches)
    kinds = [device.kind for device in cluster.devices]
    return available_micro_batches(model, kinds, job.batch, extrapolate=job.extrapolate)
