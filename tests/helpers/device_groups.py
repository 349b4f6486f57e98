"""Every device group that a job allows."""

from collections.abc import Iterator

from pipeplan.core.cluster import Cluster, StageDevices
from pipeplan.core.job import Job
from pipeplan.search.space.device_groups import all_modes, device_classes, placements
from pipeplan.search.space.pins import every_placement


def all_device_groups(cluster: Cluster, job: Job, layers: int, micro_batches: int) -> Iterator[StageDevices]:
    """Yield the device groups that a job without pins allows: packed, and in tiles if all stages have equal replicas.

    A stage has at most as many replicas as there are micro-batches, and at least one layer.
    """
    classes = device_classes(cluster)
    for modes in all_modes(cluster, job, layers, micro_batches):
        yield from placements(cluster, job, classes, modes)


def every_device_group(cluster: Cluster, job: Job, layers: int, micro_batches: int) -> Iterator[StageDevices]:
    """Yield the device groups of small clusters: any like devices, whichever node they lie in."""
    classes = device_classes(cluster)
    for modes in all_modes(cluster, job, layers, micro_batches):
        yield from every_placement(cluster, classes, modes, {})
