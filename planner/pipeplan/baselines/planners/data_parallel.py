"""Data parallelism: every device holds the whole model and works on its share of the micro-batches.

::

    d0   F0 B0 F2 B2  R U        2 devices, 4 micro-batches; R sums the gradients over all devices
    d1   F1 B1 F3 B3  R U
"""

from pipeplan.baselines.partitioners.partitioner import NotApplicable
from pipeplan.baselines.planners.planner import Arrangement, BaselinePlanner
from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model


def arrange(model: Model, cluster: Cluster, job: Job, micro_batch: int) -> tuple[Arrangement, ...]:
    """Return one stage on all devices of a kind, for each kind (replicas are of one kind).

    Raises
    ------
    NotApplicable
        If there are fewer micro-batches than devices, so that some devices would be idle.
    """
    layers, shares = len(model.layers), job.batch // micro_batch
    alike: dict[str, list[int]] = {}
    for device in cluster.devices:
        alike.setdefault(device.kind.name, []).append(device.index)
    stages = [tuple(devices) for devices in alike.values() if len(devices) <= shares]
    if not stages:
        count = min(map(len, alike.values()))
        raise NotApplicable(
            f"data parallelism on {count} devices needs a micro-batch for each of them: a batch of {job.batch} in "
            f"micro-batches of {micro_batch} has {shares}"
        )
    return tuple(Arrangement((0, layers), (stage,)) for stage in stages)


PLANNER = BaselinePlanner(
    "data-parallel",
    "the whole model on every device, gradients summed behind the last backward",
    "gradient accumulation as written by hand: one sum once per step",
    (),
    arrange,
    overlaps=False,
)
